"""What a kernel is: expressions over elements, from which loops are generated."""
