//! Placeholder.
pub mod fabric;
pub mod sys;
