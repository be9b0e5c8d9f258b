//! Who serves what arrived.

/// Who serves what arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedBy {
    /// The application, in one of its calls about messages.
    Application,
    /// This library: its service thread, or a call that ends things. Memory of the application's may be gone (`soft_memory::careful`).
    Library,
}
