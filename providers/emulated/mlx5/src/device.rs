//! The models of emulated adapters. Numbers are those that the adapters show to programs: PCI ids
//! and firmware versions.

/// A model of adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// The name in settings.
    pub name: &'static str,
    /// PCI device id, which is also `ibv_device_attr.vendor_part_id`.
    pub pci_device: u16,
    /// Firmware version, as `ibv_device_attr.fw_ver`.
    pub firmware: &'static str,
    /// `active_speed` of a port at four lanes: 32 is 25 Gb/s a lane, 128 is 100 Gb/s a lane.
    pub speed: u8,
    /// Number of ports.
    pub ports: u16,
    /// Number of QPs for which the caller keeps a table.
    pub qp_table: u32,
}

/// PCI vendor id of all models.
pub const PCI_VENDOR: u16 = 0x15b3;

/// `ibv_device_attr.vendor_id` of all models.
pub const VENDOR_ID: u32 = 0x02_c9;

/// ConnectX-6 Dx, 100 Gb/s.
pub const CONNECTX_6_DX: Model = Model {
    name: "cx6dx",
    pci_device: 0x101d,
    firmware: "22.39.1002",
    speed: 32,
    ports: 1,
    qp_table: 1 << 18,
};

/// ConnectX-7, 400 Gb/s.
pub const CONNECTX_7: Model = Model {
    name: "cx7",
    pci_device: 0x1021,
    firmware: "28.39.1002",
    speed: 128,
    ports: 1,
    qp_table: 1 << 18,
};

/// All models; the first is the default.
pub const MODELS: [Model; 2] = [CONNECTX_6_DX, CONNECTX_7];

impl Model {
    /// The model with this name in settings.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        MODELS.into_iter().find(|model| model.name == name)
    }

    /// The line that udev matches (`modalias`) for the PCI device.
    #[must_use]
    pub fn modalias(&self) -> String {
        let (vendor, device) = (PCI_VENDOR, self.pci_device);
        format!("pci:v{vendor:08X}d{device:08X}sv{vendor:08X}sd00000001bc02sc00i00")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_name_the_models() {
        assert_eq!(Model::named("cx7"), Some(CONNECTX_7));
        assert_eq!(Model::named("cx6dx"), Some(CONNECTX_6_DX));
        assert_eq!(Model::named("cx9"), None);
    }

    #[test]
    fn the_modalias_names_vendor_and_device() {
        let alias = CONNECTX_7.modalias();
        assert!(alias.starts_with("pci:v000015B3d00001021sv000015B3"), "{alias}");
    }
}
