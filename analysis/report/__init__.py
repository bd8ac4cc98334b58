"""Reports: a result in, text out; the caller writes."""
