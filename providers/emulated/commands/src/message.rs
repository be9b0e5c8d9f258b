//! An ioctl of uverbs as its bytes (`<rdma/rdma_user_ioctl_cmds.h>`): a header, and attributes that
//! hold up to 8 bytes themselves or the address of more.

use core::mem::offset_of;

use abi::{
    IB_USER_VERBS_CMD_FLAG_EXTENDED, UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT,
    UVERBS_ATTR_F_MANDATORY, UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT, UVERBS_ATTR_WRITE_CMD,
    UVERBS_METHOD_INVOKE_WRITE, UVERBS_OBJECT_DEVICE, ib_uverbs_attr, ib_uverbs_ioctl_hdr,
};

use crate::fields::Fields;
use crate::refusal::Refusal;

/// Bytes of the header.
pub const HEADER: usize = size_of::<ib_uverbs_ioctl_hdr>();
/// Bytes of an attribute.
pub const ATTRIBUTE: usize = size_of::<ib_uverbs_attr>();
/// The longest message that the kernel reads.
pub const LONGEST: usize = 4096;

/// The address and length of bytes in the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The first byte.
    pub address: u64,
    /// Bytes.
    pub len: usize,
}

/// Bytes that a provider sends: up to 8 in the attribute, more by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// In the attribute: as many of the 8 as the length says.
    Inline([u8; 8], usize),
    /// In the process.
    At(Range),
}

impl Sent {
    /// Nothing.
    pub const NONE: Self = Self::Inline([0; 8], 0);

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Inline(_, len) => *len,
            Self::At(range) => range.len,
        }
    }

    /// Whether nothing is sent.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A write command (`<rdma/ib_user_verbs.h>`) inside an ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteCommand {
    /// `IB_USER_VERBS_CMD_*`, or `IB_USER_VERBS_EX_CMD_*` of an extended command.
    pub number: u32,
    /// An extended command.
    pub is_extended: bool,
    /// The core request.
    pub core_in: Sent,
    /// Room for the core response.
    pub core_out: Range,
    /// The provider's request.
    pub vendor_in: Sent,
    /// Room for the provider's response.
    pub vendor_out: Range,
}

/// The command in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// A write command.
    Write(WriteCommand),
    /// A method of an object, by its attributes.
    Method {
        /// `UVERBS_OBJECT_*`.
        object: u16,
        /// The method of the object.
        method: u16,
    },
}

impl Command {
    /// Decodes a message.
    ///
    /// # Errors
    /// As the kernel: [`Refusal::Invalid`] for a length that does not fit the number of attributes,
    /// a doubled attribute, or a write command without a number; [`Refusal::NoMethod`] for reserved
    /// fields and for an unknown mandatory attribute of a write command.
    pub fn decode(message: &[u8]) -> Result<Self, Refusal> {
        let header = Fields::new(message.get(..HEADER).ok_or(Refusal::Invalid)?);
        let length = usize::from(header.u16(offset_of!(ib_uverbs_ioctl_hdr, length)));
        let count = usize::from(header.u16(offset_of!(ib_uverbs_ioctl_hdr, num_attrs)));
        if length > LONGEST || length != HEADER + count * ATTRIBUTE || length > message.len() {
            return Err(Refusal::Invalid);
        }
        if header.u64(offset_of!(ib_uverbs_ioctl_hdr, reserved1)) != 0
            || header.u32(offset_of!(ib_uverbs_ioctl_hdr, reserved2)) != 0
        {
            return Err(Refusal::NoMethod);
        }
        let object = header.u16(offset_of!(ib_uverbs_ioctl_hdr, object_id));
        let method = header.u16(offset_of!(ib_uverbs_ioctl_hdr, method_id));
        if (object, method) != (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE) {
            return Ok(Self::Method { object, method });
        }
        let attributes = message.get(HEADER..length).unwrap_or_default();
        write_command(attributes).map(Self::Write)
    }
}

fn write_command(attributes: &[u8]) -> Result<WriteCommand, Refusal> {
    let mut command = WriteCommand {
        number: 0,
        is_extended: false,
        core_in: Sent::NONE,
        core_out: Range::default(),
        vendor_in: Sent::NONE,
        vendor_out: Range::default(),
    };
    let mut seen = Vec::with_capacity(5);
    for attribute in attributes.chunks_exact(ATTRIBUTE) {
        let fields = Fields::new(attribute);
        let id = fields.u16(offset_of!(ib_uverbs_attr, attr_id));
        if seen.contains(&id) {
            return Err(Refusal::Invalid);
        }
        seen.push(id);
        let len = usize::from(fields.u16(offset_of!(ib_uverbs_attr, len)));
        let data = fields.u64(offset_of!(ib_uverbs_attr, data));
        let sent = if len <= 8 {
            Sent::Inline(data.to_ne_bytes(), len)
        } else {
            Sent::At(Range { address: data, len })
        };
        let room = Range { address: data, len };
        match id {
            UVERBS_ATTR_WRITE_CMD if len == 8 => {
                // The upper half has no meaning, as in the kernel.
                let number = data as u32;
                command.is_extended = number & IB_USER_VERBS_CMD_FLAG_EXTENDED != 0;
                command.number = number & !IB_USER_VERBS_CMD_FLAG_EXTENDED;
            }
            UVERBS_ATTR_WRITE_CMD => return Err(Refusal::Invalid),
            UVERBS_ATTR_CORE_IN => command.core_in = sent,
            UVERBS_ATTR_CORE_OUT => command.core_out = room,
            UVERBS_ATTR_UHW_IN => command.vendor_in = sent,
            UVERBS_ATTR_UHW_OUT => command.vendor_out = room,
            _ => {
                let flags = fields.u16(offset_of!(ib_uverbs_attr, flags));
                if flags & UVERBS_ATTR_F_MANDATORY != 0 {
                    return Err(Refusal::NoMethod);
                }
            }
        }
    }
    if seen.contains(&UVERBS_ATTR_WRITE_CMD) { Ok(command) } else { Err(Refusal::Invalid) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Structure;

    fn attribute(id: u16, len: u16, flags: u16, data: u64) -> Vec<u8> {
        Structure::new(ATTRIBUTE).u16(0, id).u16(2, len).u16(4, flags).u64(8, data).into_bytes()
    }

    fn message(object: u16, method: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
        let length = HEADER + attributes.len() * ATTRIBUTE;
        let header = Structure::new(HEADER)
            .u16(0, u16::try_from(length).expect("short"))
            .u16(2, object)
            .u16(4, method)
            .u16(6, u16::try_from(attributes.len()).expect("few"));
        [header.into_bytes(), attributes.concat()].concat()
    }

    #[test]
    fn a_write_command_is_found_in_its_ioctl() {
        let attributes = [
            attribute(UVERBS_ATTR_WRITE_CMD, 8, 1, u64::from(IB_USER_VERBS_CMD_FLAG_EXTENDED) | 24),
            attribute(UVERBS_ATTR_CORE_IN, 64, 1, 0x1000),
            attribute(UVERBS_ATTR_CORE_OUT, 40, 1, 0x2000),
            attribute(UVERBS_ATTR_UHW_IN, 4, 1, 0x0403_0201),
        ];
        let sent = message(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE, &attributes);
        let Ok(Command::Write(command)) = Command::decode(&sent) else { panic!("refused") };
        assert_eq!((command.number, command.is_extended), (24, true));
        assert_eq!(command.core_in, Sent::At(Range { address: 0x1000, len: 64 }));
        assert_eq!(command.core_out, Range { address: 0x2000, len: 40 });
        assert_eq!(command.vendor_in, Sent::Inline(0x0403_0201_u64.to_ne_bytes(), 4));
        assert_eq!(command.vendor_out.len, 0);
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let good = message(3, 4, &[attribute(1, 0, 1, 0)]);
        assert_eq!(Command::decode(&good), Ok(Command::Method { object: 3, method: 4 }));
        for cut in 0..good.len() {
            assert_eq!(Command::decode(&good[..cut]), Err(Refusal::Invalid), "{cut}");
        }
        let mut longer = good.clone();
        longer[0] += 1;
        assert_eq!(Command::decode(&longer), Err(Refusal::Invalid));
        let mut reserved = good;
        reserved[8] = 1;
        assert_eq!(Command::decode(&reserved), Err(Refusal::NoMethod));
    }

    #[test]
    fn a_write_command_has_its_number_once_and_nothing_unknown() {
        let number = attribute(UVERBS_ATTR_WRITE_CMD, 8, 1, 3);
        let unknown = |flags| attribute(0x1234, 8, flags, 0);
        let decode = |attributes: &[Vec<u8>]| {
            let sent = message(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE, attributes);
            Command::decode(&sent).map(|_| ())
        };
        assert_eq!(decode(&[]), Err(Refusal::Invalid));
        assert_eq!(decode(&[number.clone(), number.clone()]), Err(Refusal::Invalid));
        assert_eq!(decode(&[number.clone(), unknown(1)]), Err(Refusal::NoMethod));
        assert_eq!(decode(&[number, unknown(0)]), Ok(()));
    }
}
