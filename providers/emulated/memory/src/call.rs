//! A command as a provider sends it: an ioctl in the memory of the process.

use core::ffi::c_int;
use core::mem::offset_of;

use abi::{UVERBS_ATTR_F_VALID_OUTPUT, ib_uverbs_attr, ib_uverbs_ioctl_hdr};
use emulated_commands::kernel::{Answer, WriteRequest};
use emulated_commands::message::{self, Command, Range};
use emulated_commands::refusal::Refusal;
use emulated_commands::vendor::MethodAnswer;

/// A command as it was sent.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// A write command.
    Write(WriteRequest<'a>),
    /// A method of an object.
    Method {
        /// `UVERBS_OBJECT_*`, or an object of the vendor's own.
        object: u16,
        /// The method of the object.
        method: u16,
    },
}

/// The response to a command.
#[derive(Clone, Debug)]
pub enum Response {
    /// Of a write command.
    Write(Answer),
    /// Of a method.
    Method(MethodAnswer),
}

/// Executes the command in `message` by `run`, and stores the response. The result is 0 or an
/// errno, as the kernel's ioctl has it.
///
/// # Safety
/// `message` is a message as long as its header says, which may be written. Its attributes name
/// memory that may be read and written accordingly, as for the kernel. Buffers of queues that a
/// command names stay mapped and writable until the command that ends the queue.
pub unsafe fn answer(
    message: *mut ib_uverbs_ioctl_hdr,
    run: impl FnOnce(&Request<'_>) -> Result<Response, Refusal>,
) -> c_int {
    // SAFETY: per the caller.
    match unsafe { try_answer(message, run) } {
        Ok(()) => 0,
        Err(refusal) => refusal.errno(),
    }
}

/// # Safety
/// As [`answer`].
unsafe fn try_answer(
    message: *mut ib_uverbs_ioctl_hdr,
    run: impl FnOnce(&Request<'_>) -> Result<Response, Refusal>,
) -> Result<(), Refusal> {
    // SAFETY: every message has a header.
    let length = usize::from(unsafe { (&raw const (*message).length).read() });
    if !(message::HEADER..=message::LONGEST).contains(&length) {
        return Err(Refusal::Invalid);
    }
    // SAFETY: as long as the header says. The copy is not changed by other threads.
    let bytes = unsafe { core::slice::from_raw_parts(message.cast::<u8>(), length) }.to_vec();
    let command = match Command::decode(&bytes)? {
        Command::Write(command) => command,
        Command::Method { object, method } => {
            if let Response::Method(answer) = run(&Request::Method { object, method })? {
                // SAFETY: memory that may be written, per the caller.
                unsafe { store_values(message, &answer) };
            }
            return Ok(());
        }
    };
    // SAFETY: memory that may be read, per the caller.
    let (core, vendor) = unsafe { (fetch(command.core_in), fetch(command.vendor_in)) };
    let sent = WriteRequest {
        number: command.number,
        is_extended: command.is_extended,
        core: &core,
        room: command.core_out.len,
        vendor: &vendor,
    };
    let Response::Write(answer) = run(&Request::Write(sent))? else {
        return Err(Refusal::NoMethod);
    };
    // SAFETY: memory that may be written, per the caller.
    unsafe {
        store(command.core_out, &answer.core);
        store(command.vendor_out, &answer.vendor);
        mark_outputs(message, &[command.core_out, command.vendor_out]);
    }
    Ok(())
}

/// The attributes of a message, which follow its header.
///
/// # Safety
/// As [`answer`].
unsafe fn attributes(
    message: *mut ib_uverbs_ioctl_hdr,
) -> impl Iterator<Item = *mut ib_uverbs_attr> {
    // SAFETY: every message has a header.
    let count = usize::from(unsafe { (&raw const (*message).num_attrs).read() });
    let first = message.wrapping_add(1).cast::<ib_uverbs_attr>();
    (0..count).map(move |index| first.wrapping_add(index))
}

/// Stores the values of a method of the vendor's own.
///
/// # Safety
/// As [`answer`]; the message was decoded.
unsafe fn store_values(message: *mut ib_uverbs_ioctl_hdr, answer: &MethodAnswer) {
    // SAFETY: per the caller.
    for attribute in unsafe { attributes(message) } {
        // SAFETY: one of the message's attributes.
        let ib_uverbs_attr { attr_id, len, data, .. } = unsafe { attribute.read() };
        if let Some((_, handle)) = answer.handle.filter(|(id, _)| *id == attr_id) {
            let data = attribute.wrapping_byte_add(offset_of!(ib_uverbs_attr, data)).cast::<u64>();
            // SAFETY: a member of the same attribute.
            unsafe { data.write(handle.into()) };
        }
        if let Some((_, bytes)) = answer.values.iter().find(|(id, _)| *id == attr_id) {
            // SAFETY: memory that may be written, per the caller.
            unsafe { store(Range { address: data, len: len.into() }, bytes) };
        }
    }
}

/// # Safety
/// The bytes may be read.
unsafe fn fetch(sent: message::Sent) -> Vec<u8> {
    match sent {
        message::Sent::Inline(bytes, len) => bytes.into_iter().take(len).collect(),
        message::Sent::At(Range { address: 0, len }) => vec![0; len],
        message::Sent::At(Range { address, len }) => {
            let start = core::ptr::with_exposed_provenance::<u8>(address as usize);
            // SAFETY: per the caller, and not NULL.
            unsafe { core::slice::from_raw_parts(start, len) }.to_vec()
        }
    }
}

/// Stores as much of `bytes` as there is room, and zeros behind.
///
/// # Safety
/// The room may be written.
unsafe fn store(room: Range, bytes: &[u8]) {
    if room.address == 0 {
        return;
    }
    let start = core::ptr::with_exposed_provenance_mut::<u8>(room.address as usize);
    let known = bytes.len().min(room.len);
    // SAFETY: per the caller, not NULL, and no more than the room.
    unsafe {
        start.copy_from_nonoverlapping(bytes.as_ptr(), known);
        start.add(known).write_bytes(0, room.len - known);
    }
}

/// Marks the attributes of the responses as filled, as the kernel does.
///
/// # Safety
/// As [`answer`].
unsafe fn mark_outputs(message: *mut ib_uverbs_ioctl_hdr, rooms: &[Range]) {
    // SAFETY: per the caller.
    for attribute in unsafe { attributes(message) } {
        // SAFETY: one of the message's attributes.
        let data = unsafe { (&raw const (*attribute).data).read() };
        if data != 0 && rooms.iter().any(|room| room.address == data) {
            let flags =
                attribute.wrapping_byte_add(offset_of!(ib_uverbs_attr, flags)).cast::<u16>();
            // SAFETY: a member of the same attribute.
            unsafe { flags.write(flags.read() | UVERBS_ATTR_F_VALID_OUTPUT) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::{
        UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT,
        UVERBS_ATTR_WRITE_CMD, UVERBS_METHOD_INVOKE_WRITE, UVERBS_OBJECT_DEVICE, Zeroed,
        ib_uverbs_attr_enum_data,
    };

    #[repr(C)]
    struct Message {
        header: ib_uverbs_ioctl_hdr,
        attributes: [ib_uverbs_attr; 5],
    }

    fn attribute(attr_id: u16, len: u16, data: u64) -> ib_uverbs_attr {
        let attr_data = ib_uverbs_attr_enum_data { elem_id: 0, reserved: 0 };
        ib_uverbs_attr { attr_id, len, flags: 1, attr_data, data }
    }

    fn message(object_id: u16, attributes: [ib_uverbs_attr; 5]) -> Box<Message> {
        let header = ib_uverbs_ioctl_hdr {
            length: size_of::<Message>() as u16,
            object_id,
            method_id: UVERBS_METHOD_INVOKE_WRITE,
            num_attrs: 5,
            ..ib_uverbs_ioctl_hdr::zeroed()
        };
        Box::new(Message { header, attributes })
    }

    #[test]
    fn a_command_is_read_and_its_responses_fill_their_room() {
        let core = [3_u32; 4];
        let (mut core_out, mut vendor_out) = ([0xff_u8; 12], [0xff_u8; 4]);
        let mut sent = message(
            UVERBS_OBJECT_DEVICE,
            [
                attribute(UVERBS_ATTR_WRITE_CMD, 8, 9),
                attribute(UVERBS_ATTR_CORE_IN, 16, core.as_ptr().expose_provenance() as u64),
                attribute(
                    UVERBS_ATTR_CORE_OUT,
                    10,
                    core_out.as_mut_ptr().expose_provenance() as u64,
                ),
                attribute(UVERBS_ATTR_UHW_IN, 2, 0x0201),
                attribute(
                    UVERBS_ATTR_UHW_OUT,
                    2,
                    vendor_out.as_mut_ptr().expose_provenance() as u64,
                ),
            ],
        );
        let at = (&raw mut *sent).cast::<ib_uverbs_ioctl_hdr>();
        // SAFETY: a message of our own, whose attributes name variables.
        let result = unsafe {
            answer(at, |sent| {
                let Request::Write(sent) = sent else { panic!("a write command") };
                assert_eq!((sent.number, sent.is_extended, sent.room), (9, false, 10));
                assert_eq!((sent.core.len(), sent.vendor), (16, &[1, 2][..]));
                Ok(Response::Write(Answer { core: vec![1, 2, 3], vendor: vec![4; 9] }))
            })
        };
        assert_eq!(result, 0);
        assert_eq!(core_out, [1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        assert_eq!(vendor_out, [4, 4, 0xff, 0xff]);
        assert_eq!(sent.attributes.map(|attribute| attribute.flags), [1, 1, 3, 1, 3]);
    }

    #[test]
    fn other_methods_and_refusals_become_errnos() {
        let empty = |id| attribute(id, 0, 0);
        let attributes = || [1, 2, 3, 4, 5].map(empty);
        let mut other = message(7, attributes());
        let at = (&raw mut *other).cast::<ib_uverbs_ioctl_hdr>();
        // SAFETY: a message of our own without memory of its attributes.
        let result = unsafe { answer(at, |_| Err(Refusal::NoMethod)) };
        assert_eq!(result, libc::EPROTONOSUPPORT);
        other.header.length = 8;
        // SAFETY: as above; no more than the header is read.
        let result = unsafe { answer((&raw mut *other).cast(), |_| Err(Refusal::NoMethod)) };
        assert_eq!(result, libc::EINVAL);

        let mut refused = message(UVERBS_OBJECT_DEVICE, attributes());
        refused.attributes = [
            attribute(UVERBS_ATTR_WRITE_CMD, 8, 3),
            empty(UVERBS_ATTR_CORE_IN),
            empty(UVERBS_ATTR_CORE_OUT),
            empty(UVERBS_ATTR_UHW_IN),
            empty(UVERBS_ATTR_UHW_OUT),
        ];
        let at = (&raw mut *refused).cast::<ib_uverbs_ioctl_hdr>();
        // SAFETY: as above.
        let result = unsafe { answer(at, |_| Err(Refusal::InUse)) };
        assert_eq!(result, libc::EBUSY);
    }

    #[test]
    fn a_method_of_the_vendor_fills_its_attributes() {
        let mut offset = [0xff_u8; 8];
        let empty = |id| attribute(id, 0, 0);
        let room = offset.as_mut_ptr().expose_provenance() as u64;
        let attributes = [attribute(7, 0, 0), attribute(8, 8, room), empty(3), empty(4), empty(5)];
        let mut sent = message(0x1008, attributes);
        sent.header.method_id = 0x1000;
        let at = (&raw mut *sent).cast::<ib_uverbs_ioctl_hdr>();
        // SAFETY: a message of our own, whose attributes name variables.
        let result = unsafe {
            answer(at, |sent| {
                assert!(matches!(sent, Request::Method { object: 0x1008, method: 0x1000 }));
                let values = vec![(8, vec![1, 2]), (9, vec![3])];
                Ok(Response::Method(MethodAnswer { handle: Some((7, 0x55)), values }))
            })
        };
        assert_eq!((result, sent.attributes[0].data), (0, 0x55));
        assert_eq!(offset, [1, 2, 0, 0, 0, 0, 0, 0]);
    }
}
