//! How a call can fail.

use std::{fmt, time::Duration};

use thiserror::Error;

use super::{Call, auth::AuthError, transport::Reply};
use crate::{
    token::Token,
    version::RestVersion,
    wire::{DecodeError, ErrorEntry},
};

/// Slurm's numbers of errors that callers may want to tell apart.
pub mod code {
    /// The token was not accepted.
    pub const AUTHENTICATION: i64 = 1007;
    /// slurmctld cannot be reached.
    pub const CONTROLLER_UNREACHABLE: i64 = 1800;
    /// No such partition.
    pub const INVALID_PARTITION: i64 = 2000;
    /// The user may not do that.
    pub const ACCESS_DENIED: i64 = 2002;
    /// The nodes have jobs or, from 26.05 on, a reservation that has begun.
    pub const NODES_BUSY: i64 = 2016;
    /// No such job.
    pub const INVALID_JOB: i64 = 2017;
    /// No such node.
    pub const INVALID_NODE: i64 = 2018;
    /// The job has not started.
    pub const JOB_PENDING: i64 = 2024;
    /// The job is over or nearly so.
    pub const ALREADY_DONE: i64 = 2021;
    /// No such reservation.
    pub const INVALID_RESERVATION: i64 = 2053;
    /// There is a node of that name already.
    pub const NODE_EXISTS: i64 = 2168;
    /// slurmdbd cannot be reached.
    pub const DATABASE_UNREACHABLE: i64 = 7000;
}

/// Stands for an answer that is not shown.
const NOT_SLURM: &str = "not an answer of Slurm's REST API";

/// Why a call failed. No variant holds a token.
#[derive(Debug, Error)]
pub enum Error {
    /// The settings of the client make no sense.
    #[error("bad settings: {what}")]
    Settings {
        /// What is wrong with them.
        what: String,
    },
    /// There was no token to send.
    #[error("cannot {call}: no token")]
    NoToken {
        /// What was asked for.
        call: Call,
        /// Why not.
        source: AuthError,
    },
    /// slurmrestd cannot be reached, or hung up in the middle.
    #[error("cannot {call}: slurmrestd is not reachable")]
    Unreachable {
        /// What was asked for.
        call: Call,
        /// How the connection failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// slurmrestd answers, but the daemon behind it (slurmctld or slurmdbd) does not. From 26.05 on, a token that
    /// slurmdbd does not like looks the same.
    #[error("cannot {call}: {refusal}")]
    DaemonDown {
        /// What was asked for.
        call: Call,
        /// What slurmrestd says about it.
        refusal: Box<Refusal>,
    },
    /// No answer in time. Whether a change was made nobody knows.
    #[error("cannot {call}: no answer within {} s", .after.as_secs_f32())]
    Timeout {
        /// What was asked for.
        call: Call,
        /// How long it was waited for.
        after: Duration,
    },
    /// The token was not accepted.
    #[error("cannot {call}: not authorised: {refusal}")]
    Unauthorised {
        /// What was asked for.
        call: Call,
        /// What slurmrestd says about it.
        refusal: Box<Refusal>,
    },
    /// There is no such node, job, partition or reservation.
    #[error("cannot {call}: no `{what}`")]
    NotFound {
        /// What was asked for.
        call: Call,
        /// What there is not.
        what: String,
    },
    /// Slurm does not want to.
    #[error("cannot {call}: {refusal}")]
    Refused {
        /// What was asked for.
        call: Call,
        /// What slurmrestd says about it.
        refusal: Box<Refusal>,
    },
    /// This REST version, or this server, has no such call. Nothing was sent, unless the server changed since.
    #[error("cannot {call}: not offered in {rest}")]
    NotOffered {
        /// What was asked for.
        call: Call,
        /// The version in use.
        rest: RestVersion,
    },
    /// Server and client have no version in common.
    #[error("no REST version in common: the server has {offered:?}, this client v0.0.41 to v0.0.46")]
    NoCommonVersion {
        /// What the server has.
        offered: Vec<String>,
    },
    /// The answer cannot be read.
    #[error("cannot {call}: the answer cannot be read")]
    Undecodable {
        /// What was asked for.
        call: Call,
        /// Where and why.
        source: Box<DecodeError>,
    },
}

impl Error {
    /// One word for each kind, for metrics.
    pub const fn class(&self) -> &'static str {
        match self {
            Self::Settings { .. } => "settings",
            Self::NoToken { .. } => "no_token",
            Self::Unreachable { .. } => "unreachable",
            Self::DaemonDown { .. } => "daemon_down",
            Self::Timeout { .. } => "timeout",
            Self::Unauthorised { .. } => "unauthorised",
            Self::NotFound { .. } => "not_found",
            Self::Refused { .. } => "refused",
            Self::NotOffered { .. } => "not_offered",
            Self::NoCommonVersion { .. } => "no_common_version",
            Self::Undecodable { .. } => "undecodable",
        }
    }

    /// Whether there is no such thing.
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether the server has no such call.
    pub const fn is_not_offered(&self) -> bool {
        matches!(self, Self::NotOffered { .. })
    }

    /// Whether Slurm could not be asked at all, so that trying later makes sense.
    pub const fn is_outage(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::DaemonDown { .. } | Self::Timeout { .. })
    }

    /// The same for a list of which so many records had already been taken.
    pub(super) fn behind(mut self, key: &str, taken: usize) -> Self {
        if let Self::Undecodable { source, .. } = &mut self
            && let Some(rest) = source.path.strip_prefix(key).and_then(|rest| rest.strip_prefix('['))
            && let Some((place, rest)) = rest.split_once(']')
            && let Ok(place) = place.parse::<usize>()
        {
            source.path = format!("{key}[{}]{rest}", place + taken);
        }
        self
    }

    /// The same without secrets of the response that it is about.
    pub(super) fn discreet(self, reply: &Reply) -> Self {
        let mut error = self.without(reply.token.as_ref());
        if !reply.is_hidden {
            return error;
        }
        match &mut error {
            Self::DaemonDown { refusal, .. } | Self::Unauthorised { refusal, .. } | Self::Refused { refusal, .. } => {
                NOT_SLURM.clone_into(&mut refusal.text);
            }
            // The reason quotes values. The path names fields at most.
            Self::Undecodable { source, .. } => NOT_SLURM.clone_into(&mut source.reason),
            _ => {}
        }
        error
    }

    /// The same without the token, which a server that echoes its input could have put into its words.
    fn without(mut self, token: Option<&Token>) -> Self {
        let Some(token) = token else { return self };
        let clean = |text: &mut String| {
            if text.contains(token.expose()) {
                *text = text.replace(token.expose(), "(token)");
            }
        };
        match &mut self {
            Self::DaemonDown { refusal, .. } | Self::Unauthorised { refusal, .. } | Self::Refused { refusal, .. } => {
                clean(&mut refusal.text);
                for entry in &mut refusal.errors {
                    clean(&mut entry.error);
                    clean(&mut entry.description);
                    clean(&mut entry.source);
                }
            }
            Self::Undecodable { source, .. } => {
                clean(&mut source.path);
                clean(&mut source.reason);
            }
            Self::NoCommonVersion { offered } => offered.iter_mut().for_each(clean),
            _ => {}
        }
        self
    }

    /// Slurm's number of the error, where Slurm gave one.
    pub fn code(&self) -> Option<i64> {
        match self {
            Self::DaemonDown { refusal, .. } | Self::Unauthorised { refusal, .. } | Self::Refused { refusal, .. } => {
                refusal.code()
            }
            _ => None,
        }
    }
}

/// What slurmrestd says when it does not do what it was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// Slurm's errors.
    pub errors: Vec<ErrorEntry>,
    /// What else was in the answer, shortened, where there were no errors to read.
    pub text: String,
}

impl Refusal {
    /// Slurm's number of the error: the last one that is not zero, because the first ones are often about parsing.
    pub fn code(&self) -> Option<i64> {
        self.errors.iter().rev().map(|entry| entry.code).find(|code| *code != 0)
    }

    pub(super) fn has_code(&self, codes: &[i64]) -> bool {
        self.errors.iter().any(|entry| codes.contains(&entry.code))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.errors.is_empty() {
            return write!(f, "HTTP {}: {}", self.status, if self.text.is_empty() { "no details" } else { &self.text });
        }
        for (index, entry) in self.errors.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{} ({}, code {})", entry.description, entry.error, entry.code)?;
        }
        Ok(())
    }
}
