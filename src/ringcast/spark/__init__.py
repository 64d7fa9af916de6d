"""The only code that imports pyspark."""
