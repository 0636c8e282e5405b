//! Meta: shapes and dtypes without data.
