"""Registration: dispatchers, libraries, keys, backends, functions as operators."""
