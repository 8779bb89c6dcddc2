use thiserror::Error;

/// Why a text is not a Slurm configuration, or a value cannot be written into one.
///
/// No message repeats a value: some of them are passwords.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ConfError {
    /// A line that is neither a comment, nor `Include`, nor `Key=Value`.
    #[error("line {line} is not Key=Value: correct it, or put a # in front to make it a comment")]
    NotAPair {
        /// Where the line starts, from 1.
        line: usize,
    },
    /// Something follows a value that is not the next pair.
    #[error("line {line}: what follows the value of {key} is not Key=Value: put a value with blanks in quotes")]
    Trailing {
        /// Where the line starts, from 1.
        line: usize,
        /// The key before it.
        key: String,
    },
    /// A key without a value. Slurm takes the next word for the value, whatever that is.
    #[error("line {line}: {key} has no value: write {key}=\"\" or remove it")]
    NoValue {
        /// Where the line starts, from 1.
        line: usize,
        /// The key.
        key: String,
    },
    /// A quote that does not go around the whole value. Slurm takes it for a letter.
    #[error("line {line}: the quotes must go around the whole value of {key}")]
    Quotes {
        /// Where the line starts, from 1.
        line: usize,
        /// The key.
        key: String,
    },
    /// A character that no configuration has any use for.
    #[error("line {line} has the control character {character:?} in it: remove it")]
    Control {
        /// Where the line starts, from 1.
        line: usize,
        /// The character.
        character: char,
    },
    /// `Include` without a file, or with more than one.
    #[error("line {line}: Include takes one file name")]
    Include {
        /// Where the line starts, from 1.
        line: usize,
    },
    /// A key with other characters than letters, digits, `_` and `.`.
    #[error("`{key}` is not a key: only letters, digits, _ and . are allowed")]
    Key {
        /// The offending key.
        key: String,
    },
    /// A value with something in it that its kind does not allow.
    #[error("the value of {key} {found}")]
    Value {
        /// The key.
        key: String,
        /// What is wrong with it.
        found: Found,
    },
    /// A key that another part of the same line sets already.
    #[error("{key} is set already: remove it")]
    Taken {
        /// The key.
        key: String,
    },
    /// A key that would start a record of its own.
    #[error("{key} starts a line of its own and cannot be one of several options: remove it")]
    Starts {
        /// The key.
        key: String,
    },
    /// A comment or heading of more than one line.
    #[error("a comment must be one line without control characters")]
    Comment,
}

/// What a value has in it that its kind does not allow.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Found {
    /// Nothing at all.
    #[error("is empty: give it one, or leave the key out")]
    Nothing,
    /// The end of a line, after which anything could follow.
    #[error("has a line break in it: write it on one line")]
    LineBreak,
    /// A blank, after which a second key could follow.
    #[error("has a blank in it: remove it")]
    Blank,
    /// `#`, which starts a comment.
    #[error("has a # in it, which starts a comment: remove it")]
    Hash,
    /// `\`, which changes the meaning of what follows.
    #[error("has a backslash in it, which Slurm takes away: remove it")]
    Backslash,
    /// `"`, which Slurm's notation cannot express there.
    #[error("has a quotation mark where Slurm's notation allows none: remove it")]
    Quote,
    /// A comma, which would make two options of one.
    #[error("has a comma in it: give each option by itself")]
    Comma,
    /// A control character.
    #[error("has a control character in it: remove it")]
    Control,
    /// A character that names do not have: `a[1-9]` or `ALL,b` would be several names.
    #[error("has the character {0:?} in it: a name has letters, digits, -, _ and . only")]
    NotInName(char),
}
