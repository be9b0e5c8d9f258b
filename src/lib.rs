//! The verbs front-end.
