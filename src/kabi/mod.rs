//! What a provider plugin calls.

pub(crate) mod absent;
