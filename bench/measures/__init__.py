"""One module for each thing that is measured: it runs the cells and says what they mean."""
