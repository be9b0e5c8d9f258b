//! The devices of vendors that the adapter emulates (`FERROVERBS_EMULATE`). The provider and the
//! command read the variable and pass its text.

/// An emulated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmulatedDevice {
    /// AWS EFA.
    Efa,
}

/// The values of `FERROVERBS_EMULATE`, for messages.
pub const ALLOWED: &str = "efa";

impl EmulatedDevice {
    /// The device that a value of `FERROVERBS_EMULATE` names; `None` for another value.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        (text == ALLOWED).then_some(Self::Efa)
    }

    /// The name of the vendor's provider: `efa` for `libefa-rdmav34.so`.
    #[must_use]
    pub const fn provider(self) -> &'static str {
        match self {
            Self::Efa => "efa",
        }
    }
}
