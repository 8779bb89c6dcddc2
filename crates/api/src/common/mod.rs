//! What the custom resources of all API groups have in common.

pub mod conditions;
pub mod dns;
pub mod duration;
pub mod port;
pub(crate) mod schema;
pub mod shared;
pub mod storage;
pub mod template;
pub mod validation;
pub mod vocabulary;
