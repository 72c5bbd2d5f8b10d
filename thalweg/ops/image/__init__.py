"""Images: files, colours, boxes, crops, resizing."""
