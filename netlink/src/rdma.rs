//! The kernel's RDMA netlink family (`<rdma/rdma_netlink.h>`): the list of devices, their character
//! devices, and capabilities of the RDMA subsystem.

use netlink_packet_core::{DefaultNla, Emitable};

use crate::{Answer, Message, Socket, attribute, string_attribute, u32_attribute, u64_attribute};
use cface::Errno;

/// `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, 0)`.
const NLDEV: u16 = 5 << 10;
const CMD_GET: u16 = NLDEV | 1;
const CMD_SYS_GET: u16 = NLDEV | 6;
const CMD_GET_CHARDEV: u16 = NLDEV | 15;

const ATTR_DEV_INDEX: u16 = 1;
const ATTR_DEV_NAME: u16 = 2;
const ATTR_PORT_INDEX: u16 = 3;
const ATTR_NODE_GUID: u16 = 6;
const ATTR_DEV_NODE_TYPE: u16 = 14;
const ATTR_CHARDEV_TYPE: u16 = 69;
const ATTR_CHARDEV_NAME: u16 = 70;
const ATTR_CHARDEV_ABI: u16 = 71;
const ATTR_CHARDEV: u16 = 72;
const ATTR_UVERBS_DRIVER_ID: u16 = 73;
const ATTR_COPY_ON_FORK: u16 = 93;

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IbDevice {
    /// The kernel's number of the device.
    pub index: u32,
    /// The name, for example `rxe0`.
    pub name: String,
    /// `RDMA_NODE_*` of the kernel.
    pub node_type: u8,
    /// The node GUID in host byte order.
    pub node_guid: u64,
    /// The number of ports.
    pub ports: u32,
}

/// A character device of the RDMA subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CharDevice {
    /// `uverbsN` or `rdma_cm`: a plain name, without a path to another folder.
    pub name: String,
    /// The number of the device.
    pub dev: libc::dev_t,
    /// The version of its commands.
    pub abi_version: u32,
    /// `RDMA_DRIVER_*`; 0 when the kernel does not tell.
    pub driver_id: u32,
}

/// A connection to the RDMA subsystem.
#[derive(Debug)]
pub struct Rdma(Socket);

impl Rdma {
    /// Opens the connection.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` without RDMA in the kernel.
    pub fn open() -> Result<Self, Errno> {
        Socket::open(netlink_sys::protocols::NETLINK_RDMA).map(Self)
    }

    /// All devices, in ascending order.
    ///
    /// # Errors
    /// Of the kernel; `EIO` when an answer lacks something.
    pub fn devices(&self) -> Result<Vec<IbDevice>, Errno> {
        let messages = self.0.dump(request(CMD_GET, &[]))?;
        messages.iter().map(|message| parse_device(&message.body).ok_or(Errno::EIO)).collect()
    }

    /// The character device of a device. The query also makes the kernel load the serving module.
    ///
    /// # Errors
    /// Of the kernel; `EIO` when the answer lacks something.
    pub fn char_device(&self, index: u32) -> Result<CharDevice, Errno> {
        let index = DefaultNla::new(ATTR_DEV_INDEX, index.to_ne_bytes().to_vec());
        self.char_device_of(&[index, DefaultNla::new(ATTR_CHARDEV_TYPE, b"uverbs\0".to_vec())])
    }

    /// The character device of the connection manager. The query also makes the kernel load its
    /// module.
    ///
    /// # Errors
    /// As [`Rdma::char_device`].
    pub fn cm_device(&self) -> Result<CharDevice, Errno> {
        self.char_device_of(&[DefaultNla::new(ATTR_CHARDEV_TYPE, b"rdma_cm\0".to_vec())])
    }

    /// Sends a request for one object. The answer has the type of the request.
    fn get(&self, command: u16, attributes: &[DefaultNla]) -> Result<Message, Errno> {
        let request = request(command, attributes);
        let answer_type = request.message_type;
        self.0.get(request, answer_type, Answer::Later)
    }

    fn char_device_of(&self, attributes: &[DefaultNla]) -> Result<CharDevice, Errno> {
        let message = self.get(CMD_GET_CHARDEV, attributes)?;
        parse_char_device(&message.body).ok_or(Errno::EIO)
    }
}

/// Whether the kernel copies registered pages when a process forks, so fork support is not needed.
#[must_use]
pub fn copies_on_fork() -> bool {
    let answer = Rdma::open().and_then(|rdma| rdma.get(CMD_SYS_GET, &[]));
    answer.is_ok_and(|message| {
        attribute(&message.body, ATTR_COPY_ON_FORK)
            .and_then(<[u8]>::first)
            .is_some_and(|&copies| copies != 0)
    })
}

fn request(kind: u16, attributes: &[DefaultNla]) -> Message {
    let mut body = vec![0; attributes.buffer_len()];
    attributes.emit(&mut body);
    Message { message_type: kind, body }
}

/// The device of a message, without its header; `None` when something is missing.
#[must_use]
pub fn parse_device(body: &[u8]) -> Option<IbDevice> {
    Some(IbDevice {
        index: u32_attribute(body, ATTR_DEV_INDEX)?,
        name: string_attribute(body, ATTR_DEV_NAME)?,
        node_type: *attribute(body, ATTR_DEV_NODE_TYPE)?.first()?,
        node_guid: u64_attribute(body, ATTR_NODE_GUID)?,
        ports: u32_attribute(body, ATTR_PORT_INDEX)?,
    })
}

/// The character device of a message; `None` when something is missing.
#[must_use]
pub fn parse_char_device(body: &[u8]) -> Option<CharDevice> {
    let dev = u64_attribute(body, ATTR_CHARDEV)?;
    // The kernel's own encoding of a device number.
    let major = (dev & 0xf_ff00) >> 8;
    let minor = (dev & 0xff) | ((dev >> 12) & 0xf_ff00);
    Some(CharDevice {
        name: string_attribute(body, ATTR_CHARDEV_NAME)
            .filter(|name| !name.is_empty() && !name.contains('/'))?,
        dev: libc::makedev(u32::try_from(major).ok()?, u32::try_from(minor).ok()?),
        abi_version: u64_attribute(body, ATTR_CHARDEV_ABI)? as u32,
        driver_id: u32_attribute(body, ATTR_UVERBS_DRIVER_ID).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute_bytes;

    fn device() -> Vec<u8> {
        attribute_bytes(&[
            (ATTR_DEV_INDEX, &3_u32.to_ne_bytes()),
            (ATTR_DEV_NAME, b"rxe0\0"),
            (ATTR_PORT_INDEX, &1_u32.to_ne_bytes()),
            (ATTR_NODE_GUID, &0x0202_c9ff_fe00_00a1_u64.to_ne_bytes()),
            (ATTR_DEV_NODE_TYPE, &[1]),
        ])
    }

    #[test]
    fn a_device_needs_all_its_attributes() {
        let body = device();
        let parsed = parse_device(&body).expect("complete");
        assert_eq!((parsed.index, parsed.name.as_str(), parsed.ports), (3, "rxe0", 1));
        assert_eq!((parsed.node_type, parsed.node_guid), (1, 0x0202_c9ff_fe00_00a1));
        for len in 0..body.len() - 7 {
            assert_eq!(parse_device(&body[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn a_character_device_number_is_decoded_from_the_kernels_form() {
        // 231:0x12345 in the kernel's encoding.
        let encoded = (0x45_u64 | 231 << 8 | (0x123_u64 << 20)).to_ne_bytes();
        let abi = 2_u64.to_ne_bytes();
        let mut list: Vec<(u16, &[u8])> = vec![
            (ATTR_CHARDEV, &encoded),
            (ATTR_CHARDEV_ABI, &abi),
            (ATTR_CHARDEV_NAME, b"uverbs0\0"),
        ];
        let body = attribute_bytes(&list);
        let parsed = parse_char_device(&body).expect("complete");
        assert_eq!(parsed.dev, libc::makedev(231, 0x12345));
        assert_eq!((parsed.name.as_str(), parsed.abi_version, parsed.driver_id), ("uverbs0", 2, 0));
        list[2].1 = b"../mem\0";
        assert_eq!(parse_char_device(&attribute_bytes(&list)), None, "no path");
        list[2].1 = b"uverbs0\0";
        for lacks in 0..list.len() {
            let mut part = list.clone();
            part.remove(lacks);
            assert_eq!(parse_char_device(&attribute_bytes(&part)), None, "without {lacks}");
        }
        let driver = 14_u32.to_ne_bytes();
        list.push((ATTR_UVERBS_DRIVER_ID, &driver));
        let body = attribute_bytes(&list);
        assert_eq!(parse_char_device(&body).map(|parsed| parsed.driver_id), Some(14));
    }
}
