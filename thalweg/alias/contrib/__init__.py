"""Parts of `tf.contrib` that are neither a package of other people nor graph code of their own:
older spellings of what is here, and interfaces to hardware and services that a CPU stands in for.
"""
