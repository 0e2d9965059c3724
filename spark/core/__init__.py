"""Decisions of the data source, as plain functions: values in, values out."""
