//! Who serves what arrived.

/// Who serves what arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// The application, in one of its calls about messages.
    Application,
    /// A thread of ours, or a call that ends things: memory of the application's may be gone (`soft_memory::careful`).
    Stranger,
}
