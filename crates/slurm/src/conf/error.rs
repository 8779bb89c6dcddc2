use thiserror::Error;

/// Why a text is not a valid Slurm configuration, or a value cannot be written to one.
///
/// Messages never contain a value: it may be a password.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ConfError {
    /// A line that is neither a comment, nor `Include`, nor `Key=Value`.
    #[error("line {line} is not Key=Value: correct it, or comment it out with #")]
    NotAPair {
        /// Line number, from 1.
        line: usize,
    },
    /// The text after a value is not another pair.
    #[error("line {line}: the text after the value of {key} is not Key=Value: quote values that contain spaces")]
    Trailing {
        /// Line number, from 1.
        line: usize,
        /// The key before that text.
        key: String,
    },
    /// A key without a value. Slurm would use the next word as the value.
    #[error("line {line}: {key} has no value: write {key}=\"\" or remove the key")]
    NoValue {
        /// Line number, from 1.
        line: usize,
        key: String,
    },
    /// Quotes that do not enclose the whole value. Slurm would treat them as part of the value.
    #[error("line {line}: quotes must enclose the whole value of {key}")]
    Quotes {
        /// Line number, from 1.
        line: usize,
        key: String,
    },
    /// A control character.
    #[error("line {line} contains the control character {character:?}: remove it")]
    Control {
        /// Line number, from 1.
        line: usize,
        character: char,
    },
    /// `Include` without a file, or with more than one.
    #[error("line {line}: Include takes one file name")]
    Include {
        /// Line number, from 1.
        line: usize,
    },
    /// A key with other characters than letters, digits, `_` and `.`.
    #[error("`{key}` is not a valid key: use only letters, digits, _ and .")]
    Key { key: String },
    /// A value with characters that its kind does not allow.
    #[error("the value of {key} {found}")]
    Value { key: String, found: Found },
    /// A key that is already set on the same line.
    #[error("{key} is set already: remove it")]
    Taken { key: String },
    /// A key that would start a new record.
    #[error("{key} starts a new line in the configuration and cannot be used as an option: remove it")]
    Starts { key: String },
    /// A comment or heading of more than one line.
    #[error("a comment must be a single line without control characters")]
    Comment,
}

/// What is wrong with a value.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Found {
    /// The value is empty.
    #[error("is empty: set a value or omit the key")]
    Nothing,
    /// A line break, after which another setting could follow.
    #[error("contains a line break: write it on one line")]
    LineBreak,
    /// Whitespace, after which another key could follow.
    #[error("contains whitespace: remove it")]
    Blank,
    /// `#`, which starts a comment.
    #[error("contains a #, which starts a comment: remove it")]
    Hash,
    /// `\`, which escapes the next character.
    #[error("contains a backslash, which Slurm removes: remove it")]
    Backslash,
    /// `"` where Slurm's syntax cannot express it.
    #[error("contains a quotation mark that Slurm's syntax does not allow there: remove it")]
    Quote,
    /// A comma, which would split an option into two.
    #[error("contains a comma: set each option separately")]
    Comma,
    #[error("contains a control character: remove it")]
    Control,
    /// A character that is not allowed in names: `a[1-9]` or `ALL,b` would be several names.
    #[error("contains the character {0:?}: use only letters, digits, -, _ and . in a name")]
    NotInName(char),
}
