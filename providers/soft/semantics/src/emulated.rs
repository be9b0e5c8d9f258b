//! The devices of vendors that the adapter emulates (`FERROVERBS_EMULATE`). The provider and the
//! command read the variable and pass its text.

/// An emulated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmulatedDevice {
    /// AWS EFA.
    Efa,
    /// NVIDIA ConnectX.
    Mlx5,
}

/// The values of `FERROVERBS_EMULATE`, for messages.
pub const ALLOWED: &str = "efa or mlx5";

impl EmulatedDevice {
    /// The device that a value of `FERROVERBS_EMULATE` names; `None` for another value.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "efa" => Some(Self::Efa),
            "mlx5" => Some(Self::Mlx5),
            _ => None,
        }
    }

    /// The name of the vendor's provider: `efa` for `libefa-rdmav34.so`.
    #[must_use]
    pub const fn provider(self) -> &'static str {
        match self {
            Self::Efa => "efa",
            Self::Mlx5 => "mlx5",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_has_the_name_of_its_provider() {
        for device in [EmulatedDevice::Efa, EmulatedDevice::Mlx5] {
            assert_eq!(EmulatedDevice::parse(device.provider()), Some(device));
            assert!(ALLOWED.contains(device.provider()));
        }
        assert_eq!(EmulatedDevice::parse("mlx4"), None);
    }
}
