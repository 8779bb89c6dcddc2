//! What is wrong with a spec.

use std::fmt;

/// An invalid field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The path of the field, for example `spec.drain.timeout`.
    pub path: String,
    /// What is wrong with it, and what to do.
    pub message: String,
}

impl FieldError {
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }

    /// The field is missing or empty.
    pub fn required(path: impl Into<String>) -> Self {
        Self::new(path, "required")
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}
