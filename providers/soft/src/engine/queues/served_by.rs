//! Who serves arrivals: a call of the application, or this library. Passed through every look,
//! because it decides whether memory must be checked.

/// The caller that serves arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedBy {
    /// The application, in a call that concerns messages.
    Application,
    /// This library: its service thread, or a call that destroys an object. Memory of the
    /// application may be unmapped (`soft_memory::careful`).
    Library,
}
