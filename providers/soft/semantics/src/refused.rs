//! Why a call is refused.

/// What is wrong with a call of the application; the plugin's entry points say it as an error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// An argument is none, or not in this state: EINVAL.
    Invalid,
    /// Nothing here does that: EOPNOTSUPP.
    Unsupported,
    /// A queue is full: ENOMEM.
    Full,
}
