//! An ioctl under construction (`<rdma/rdma_user_ioctl_cmds.h>`): a header and attributes, with the
//! rules of each kind of attribute in one place, and the chained buffers of attributes that
//! providers fill with inline code of their own (`struct ibv_command_buffer`).
//!
//! Map of this file: `Command` with one function for each kind of attribute and the call itself;
//! `Chain` and `Buffer`, the form of providers; tests.

use core::ffi::c_int;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr::NonNull;

use abi::{
    CMD_BUFFER_ERROR, CMD_FALLBACK_IOCTL_ONLY, CMD_FALLBACK_REQUIRE_EX, UHW_NO_INDEX,
    UVERBS_ATTR_F_MANDATORY, UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT, Zeroed, ib_uverbs_attr,
    ib_uverbs_attr_enum_data, ib_uverbs_ioctl_hdr, ibv_command_buffer,
};

use super::bytes::{InputBytes, OutputBytes};
use super::frame::Driver;

/// An attribute of a [`Command`], to be read after the ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attr(usize);

/// An ioctl under construction. `'a` is the borrow of the memory that its attributes name.
///
/// The attributes follow room for the header, so the message is sent without a copy.
#[derive(Debug)]
pub(crate) struct Command<'a> {
    object: u16,
    method: u16,
    message: Vec<ib_uverbs_attr>,
    too_long: bool,
    flags: u8,
    pub(crate) driver: Driver<'a>,
    chain: Chain<'a>,
    borrowed: PhantomData<&'a mut [u8]>,
}

/// Two attributes' room: 8 unused bytes, then the header.
const HEADER_ROOM: usize = 2;
const HEADER_OFFSET: usize =
    HEADER_ROOM * size_of::<ib_uverbs_attr>() - size_of::<ib_uverbs_ioctl_hdr>();

impl<'a> Command<'a> {
    /// A method of an object, without attributes.
    pub(crate) fn new(object: u16, method: u16) -> Self {
        let mut message = Vec::with_capacity(24);
        message.resize(HEADER_ROOM, ib_uverbs_attr::zeroed());
        Self {
            object,
            method,
            message,
            too_long: false,
            flags: 0,
            driver: Driver::NONE,
            chain: Chain::NONE,
            borrowed: PhantomData,
        }
    }

    /// The provider's driver data, as `UHW_IN` and `UHW_OUT`.
    pub(crate) fn with_driver(mut self, driver: Driver<'a>) -> Self {
        self.driver = driver;
        self
    }

    /// Attributes of the provider, behind all others.
    pub(crate) fn with_chain(mut self, chain: Chain<'a>) -> Self {
        self.chain = chain;
        self
    }

    /// Only an extended write command can replace this ioctl.
    pub(crate) fn require_ex(&mut self) {
        self.flags |= CMD_FALLBACK_REQUIRE_EX;
    }

    /// No write command can replace this ioctl.
    pub(crate) fn require_ioctl(&mut self) {
        self.flags |= CMD_FALLBACK_IOCTL_ONLY;
    }

    fn push(&mut self, id: u16, len: usize, data: u64) -> Attr {
        let len = u16::try_from(len).unwrap_or_else(|_| {
            self.too_long = true;
            0
        });
        self.message.push(ib_uverbs_attr {
            attr_id: id,
            len,
            flags: UVERBS_ATTR_F_MANDATORY,
            attr_data: ib_uverbs_attr_enum_data { elem_id: 0, reserved: 0 },
            data,
        });
        Attr(self.message.len() - 1)
    }

    /// An existing object.
    pub(crate) fn object_in(&mut self, id: u16, handle: u32) -> Attr {
        self.push(id, 0, u64::from(handle))
    }

    /// A new object; [`Command::handle`] has its handle afterwards.
    pub(crate) fn object_out(&mut self, id: u16) -> Attr {
        self.push(id, 0, 0)
    }

    /// A descriptor. -1 stands for none and adds nothing.
    pub(crate) fn fd_in(&mut self, id: u16, fd: c_int) -> Option<Attr> {
        (fd != -1).then(|| self.push(id, 0, i64::from(fd).cast_unsigned()))
    }

    /// A new descriptor; [`Command::fd`] has it afterwards.
    pub(crate) fn fd_out(&mut self, id: u16) -> Attr {
        self.push(id, 0, 0)
    }

    /// 32 bits.
    pub(crate) fn u32_in(&mut self, id: u16, value: u32) -> Attr {
        let mut word = [0; 8];
        word[..4].copy_from_slice(&value.to_ne_bytes());
        self.push(id, size_of::<u32>(), u64::from_ne_bytes(word))
    }

    /// 64 bits; also for constants such as types and port numbers of any C type.
    pub(crate) fn u64_in(&mut self, id: u16, value: u64) -> Attr {
        self.push(id, size_of::<u64>(), value)
    }

    /// Bytes: up to 8 inline, more by address.
    pub(crate) fn bytes_in(&mut self, id: u16, bytes: InputBytes<'a>) -> Attr {
        match bytes.inline() {
            Some(word) => self.push(id, bytes.len(), word),
            None => self.push(id, bytes.len(), bytes.address()),
        }
    }

    /// Bytes of one element of an enumeration.
    pub(crate) fn enum_in(&mut self, id: u16, element: u8, bytes: InputBytes<'a>) -> Attr {
        let attr = self.bytes_in(id, bytes);
        if let Some(stored) = self.message.get_mut(attr.0) {
            stored.attr_data.elem_id = element;
        }
        attr
    }

    /// Memory for the kernel to write; always by address.
    pub(crate) fn output(&mut self, id: u16, memory: OutputBytes<'a>) -> Attr {
        self.push(id, memory.len(), memory.address())
    }

    /// Permits an older kernel to ignore the attribute.
    pub(crate) fn optional(&mut self, attr: Attr) {
        if let Some(stored) = self.message.get_mut(attr.0) {
            stored.flags &= !UVERBS_ATTR_F_MANDATORY;
        }
    }

    /// The handle in an [`object_out`](Self::object_out) attribute.
    pub(crate) fn handle(&self, attr: Attr) -> u32 {
        // The kernel stores handles in the low half.
        self.message.get(attr.0).map_or(0, |stored| stored.data as u32)
    }

    /// The descriptor in an [`fd_out`](Self::fd_out) attribute.
    pub(crate) fn fd(&self, attr: Attr) -> c_int {
        self.handle(attr).cast_signed()
    }

    pub(crate) const fn is_too_long(&self) -> bool {
        self.too_long
    }

    /// `CMD_*` of this buffer and of all chained buffers.
    pub(crate) fn all_flags(&self) -> u8 {
        self.chain.buffers().fold(self.flags, |flags, buffer| flags | buffer.flags())
    }

    /// Whether a provider chained an attribute that no write command can carry.
    pub(crate) fn has_driver_attributes(&self) -> bool {
        let known = [UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT];
        self.chain.buffers().any(|buffer| {
            buffer.attributes().iter().any(|attr| {
                attr.flags & UVERBS_ATTR_F_MANDATORY != 0 && !known.contains(&attr.attr_id)
            })
        })
    }

    /// Makes the message complete: driver data, chained attributes, header. Returns how many
    /// attributes there were before, for [`Command::send`].
    fn linearise(&mut self, driver_id: u32) -> usize {
        let own = self.message.len();
        let Driver { request, response } = &self.driver;
        let (request, response) = (*request, (response.len(), response.address()));
        if !request.is_empty() {
            self.bytes_in(UVERBS_ATTR_UHW_IN, request);
        }
        if response.0 > 0 {
            self.push(UVERBS_ATTR_UHW_OUT, response.0, response.1);
        }
        for buffer in self.chain.buffers() {
            self.message.extend(buffer.attributes_inlined());
        }
        let count = self.message.len() - HEADER_ROOM;
        let mut hdr = ib_uverbs_ioctl_hdr::zeroed();
        let bytes = size_of::<ib_uverbs_ioctl_hdr>() + count * size_of::<ib_uverbs_attr>();
        hdr.length = u16::try_from(bytes).unwrap_or_else(|_| {
            self.too_long = true;
            0
        });
        hdr.object_id = self.object;
        hdr.method_id = self.method;
        // As large as `length` at most.
        hdr.num_attrs = count as u16;
        hdr.driver_id = driver_id;
        // SAFETY: the message starts with HEADER_ROOM attributes, in the last 24 bytes of which the
        // header fits with its alignment of 8.
        unsafe {
            self.message
                .as_mut_ptr()
                .byte_add(HEADER_OFFSET)
                .cast::<ib_uverbs_ioctl_hdr>()
                .write(hdr)
        };
        own
    }

    /// Sends the message by calling `ioctl` with its address. After success the kernel's changes
    /// are copied to the chained buffers. The command can be sent again.
    pub(crate) fn send<E: From<TooLong>>(
        &mut self,
        driver_id: u32,
        ioctl: impl FnOnce(*mut ib_uverbs_ioctl_hdr) -> Result<(), E>,
    ) -> Result<(), E> {
        let own = self.linearise(driver_id);
        let result = if self.too_long {
            Err(TooLong.into())
        } else {
            ioctl(self.message.as_mut_ptr().wrapping_byte_add(HEADER_OFFSET).cast())
        };
        if result.is_ok() {
            let driver = usize::from(!self.driver.request.is_empty())
                + usize::from(!self.driver.response.is_empty());
            let mut from = self.message.get(own + driver..).unwrap_or_default();
            for mut buffer in self.chain.buffers() {
                let (changed, rest) = from.split_at(from.len().min(buffer.attributes().len()));
                buffer.take_over(changed);
                from = rest;
            }
        }
        self.message.truncate(own);
        result
    }
}

/// An attribute or the whole message is longer than the format can say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TooLong;

/// The buffers of a provider, outermost first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain<'a> {
    first: *mut ibv_command_buffer,
    borrowed: PhantomData<&'a mut ibv_command_buffer>,
}

impl Chain<'_> {
    /// No buffers.
    pub(crate) const NONE: Self = Self { first: core::ptr::null_mut(), borrowed: PhantomData };

    /// # Safety
    /// `first` is NULL or the first of a chain of buffers that inline code of rdma-core built. The
    /// buffers, their attributes and the named memory stay unchanged until the lifetime ends; the
    /// attributes are ours to write.
    pub(crate) const unsafe fn new(first: *mut ibv_command_buffer) -> Self {
        Self { first, borrowed: PhantomData }
    }

    /// Number of attributes in all buffers.
    pub(crate) fn attribute_count(&self) -> usize {
        self.buffers().map(|buffer| buffer.attributes().len()).sum()
    }

    pub(crate) fn buffers(&self) -> impl Iterator<Item = Buffer> + use<> {
        let mut next = NonNull::new(self.first);
        core::iter::from_fn(move || {
            let buffer = next?;
            // SAFETY: a live buffer by the contract of `new`.
            next = NonNull::new(unsafe { (*buffer.as_ptr()).next });
            Some(Buffer(buffer))
        })
    }
}

/// One buffer of a [`Chain`].
#[derive(Debug)]
pub(crate) struct Buffer(NonNull<ibv_command_buffer>);

impl Buffer {
    /// # Safety
    /// As for [`Chain::new`], for a single buffer.
    pub(crate) const unsafe fn new(buffer: NonNull<ibv_command_buffer>) -> Self {
        Self(buffer)
    }

    fn get(&self) -> ibv_command_buffer {
        // SAFETY: a live buffer of the provider's chain (see `Chain::new`); copied, because no
        // reference may span the attributes.
        unsafe { self.0.as_ptr().read() }
    }

    /// `CMD_*` bits.
    pub(crate) fn flags(&self) -> u8 {
        self.get().flags
    }

    /// Whether the provider tried to add an attribute that does not fit.
    pub(crate) fn has_error(&self) -> bool {
        self.flags() & CMD_BUFFER_ERROR != 0
    }

    /// A command with the attributes of this buffer and of the following buffers.
    pub(crate) fn to_command<'a>(&self) -> Command<'a> {
        let raw = self.get();
        let mut command = Command::new(raw.hdr.object_id, raw.hdr.method_id);
        command.flags = raw.flags;
        command.message.extend(self.attributes_inlined());
        // SAFETY: the rest of the chain, under the same contract.
        command.chain = unsafe { Chain::new(raw.next) };
        command
    }

    /// Copies the kernel's changes of the attributes of [`Buffer::to_command`].
    pub(crate) fn update_from(&mut self, command: &Command<'_>) {
        let count = self.attributes().len();
        self.take_over(command.message.get(HEADER_ROOM..HEADER_ROOM + count).unwrap_or_default());
    }

    /// Stores the attributes as changed by the kernel. The driver's request keeps its address,
    /// because the buffer may be sent again.
    fn take_over(&mut self, changed: &[ib_uverbs_attr]) {
        let index = usize::from(self.get().uhw_in_idx);
        for (at, (attr, changed)) in self.attributes_mut().iter_mut().zip(changed).enumerate() {
            let data = attr.data;
            *attr = *changed;
            if at == index {
                attr.data = data;
            }
        }
    }

    fn span(&self) -> (*mut ib_uverbs_attr, usize) {
        const ATTRS: usize = offset_of!(ibv_command_buffer, hdr) + size_of::<ib_uverbs_ioctl_hdr>();
        let first = self.0.as_ptr().wrapping_byte_add(ATTRS).cast::<ib_uverbs_attr>();
        let bytes = self.get().next_attr.addr().saturating_sub(first.addr());
        (first, bytes / size_of::<ib_uverbs_attr>())
    }

    fn attributes(&self) -> &[ib_uverbs_attr] {
        let (first, count) = self.span();
        // SAFETY: the attributes from the array behind the header up to `next_attr` are filled, by
        // the contract of `Chain::new`.
        unsafe { core::slice::from_raw_parts(first, count) }
    }

    fn attributes_mut(&mut self) -> &mut [ib_uverbs_attr] {
        let (first, count) = self.span();
        // SAFETY: as in `attributes`, and ours to write.
        unsafe { core::slice::from_raw_parts_mut(first, count) }
    }

    /// The attributes as they are sent: inline code stores driver requests by address at any
    /// length, since a write command needs the address; the ioctl wants short ones inline.
    fn attributes_inlined(&self) -> impl Iterator<Item = ib_uverbs_attr> + '_ {
        let index = self.get().uhw_in_idx;
        self.attributes().iter().enumerate().map(move |(at, attr)| {
            let mut attr = *attr;
            if index != UHW_NO_INDEX && usize::from(index) == at && attr.len > 0 {
                let address = core::ptr::with_exposed_provenance(attr.data as usize);
                // SAFETY: the attribute says where the driver's request is and how long, by the
                // contract of `Chain::new`.
                let request = unsafe { InputBytes::raw(address, usize::from(attr.len)) };
                attr.data = request.inline().unwrap_or(attr.data);
            }
            attr
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer in the layout of rdma-core's inline code.
    #[repr(C)]
    struct WithRoom {
        buffer: ibv_command_buffer,
        attrs: [ib_uverbs_attr; 4],
    }

    fn provider_buffer(ids: &[u16]) -> Box<WithRoom> {
        let mut room = Box::new(WithRoom {
            buffer: ibv_command_buffer::zeroed(),
            attrs: [ib_uverbs_attr::zeroed(); 4],
        });
        for (attr, &id) in room.attrs.iter_mut().zip(ids) {
            attr.attr_id = id;
            attr.flags = UVERBS_ATTR_F_MANDATORY;
        }
        room.buffer.next_attr = room.attrs.as_mut_ptr().wrapping_add(ids.len());
        room.buffer.uhw_in_idx = UHW_NO_INDEX;
        room.buffer.uhw_out_idx = UHW_NO_INDEX;
        room
    }

    fn sent(command: &mut Command<'_>) -> (ib_uverbs_ioctl_hdr, Vec<ib_uverbs_attr>) {
        let mut seen = None;
        let result: Result<(), TooLong> = command.send(14, |message| {
            // SAFETY: a header, followed by as many attributes as the header says.
            let hdr = unsafe { message.read() };
            // SAFETY: `send` passes the message in one piece: as many attributes behind the header
            // as it says.
            let attrs = unsafe {
                core::slice::from_raw_parts(
                    message.add(1).cast::<ib_uverbs_attr>(),
                    hdr.num_attrs.into(),
                )
            };
            seen = Some((hdr, attrs.to_vec()));
            Ok(())
        });
        assert!(result.is_ok());
        seen.expect("sent")
    }

    #[test]
    fn the_message_is_a_header_and_its_attributes() {
        let mut response = 0_u64;
        let mut command = Command::new(3, 1);
        command.object_in(7, 9);
        assert!(command.fd_in(8, -1).is_none());
        command.u32_in(9, 0x1234);
        let last = command.output(10, OutputBytes::of(&mut response));
        command.optional(last);
        let (hdr, attrs) = sent(&mut command);
        assert_eq!((hdr.length, hdr.object_id, hdr.method_id, hdr.num_attrs), (72, 3, 1, 3));
        assert_eq!((hdr.driver_id, hdr.reserved1, hdr.reserved2), (14, 0, 0));
        let shape: Vec<_> = attrs.iter().map(|a| (a.attr_id, a.len, a.flags)).collect();
        assert_eq!(shape, [(7, 0, 1), (9, 4, 1), (10, 8, 0)]);
        assert_eq!((attrs[0].data, attrs[1].data), (9, 0x1234));
        assert_eq!(attrs[2].data, (&raw const response).addr() as u64);
    }

    #[test]
    fn driver_data_and_chained_attributes_follow_in_order() {
        let (request, mut response) = ([1_u32, 2], [0_u8; 3]);
        let mut inner = provider_buffer(&[0x1000, 0x1002]);
        let nine = [7_u8; 5];
        inner.attrs[0].len = 5;
        inner.attrs[0].data = nine.as_ptr().expose_provenance() as u64;
        inner.buffer.uhw_in_idx = 0;
        let mut outer = provider_buffer(&[0x1003]);
        outer.buffer.next = &raw mut inner.buffer;
        // SAFETY: two live buffers.
        let chain = unsafe { Chain::new(&raw mut outer.buffer) };
        assert_eq!(chain.attribute_count(), 3);
        let mut command = Command::new(3, 0)
            .with_driver(Driver {
                request: InputBytes::slice(&request),
                response: OutputBytes::slice(&mut response),
            })
            .with_chain(chain);
        command.object_in(1, 1);
        assert!(command.has_driver_attributes());
        for _ in 0..2 {
            let (_, attrs) = sent(&mut command);
            let ids: Vec<_> = attrs.iter().map(|a| a.attr_id).collect();
            assert_eq!(ids, [1, 0x1000, 0x1001, 0x1003, 0x1000, 0x1002]);
            assert_eq!(attrs[1].data, 0x2_0000_0001);
            assert_eq!(attrs[4].data, 0x07_0707_0707);
        }
    }

    #[test]
    fn a_chained_buffer_sees_what_the_kernel_changed() {
        let mut inner = provider_buffer(&[0x1005, 0x1006]);
        // SAFETY: a live buffer.
        let mut command =
            Command::new(3, 0).with_chain(unsafe { Chain::new(&raw mut inner.buffer) });
        let out = command.object_out(0);
        let result: Result<(), TooLong> = command.send(0, |message| {
            // SAFETY: three attributes behind the header.
            let attrs = unsafe {
                core::slice::from_raw_parts_mut(message.add(1).cast::<ib_uverbs_attr>(), 3)
            };
            attrs[0].data = 77;
            attrs[2].data = 88;
            Ok(())
        });
        assert!(result.is_ok());
        assert_eq!(command.handle(out), 77);
        assert_eq!((inner.attrs[0].data, inner.attrs[1].data), (0, 88));
    }

    #[test]
    fn an_attribute_beyond_65535_bytes_is_refused_before_the_ioctl() {
        let mut command = Command::new(3, 0);
        // SAFETY: longer than the checked limit.
        command.bytes_in(1, unsafe { InputBytes::raw(core::ptr::null(), 65536) });
        let result: Result<(), TooLong> = command.send(0, |_| Ok(()));
        assert!(result.is_err() && command.is_too_long());
    }

    #[test]
    fn flags_of_all_buffers_count() {
        let mut inner = provider_buffer(&[]);
        inner.buffer.flags = CMD_FALLBACK_IOCTL_ONLY;
        // SAFETY: a live buffer.
        let mut command =
            Command::new(3, 0).with_chain(unsafe { Chain::new(&raw mut inner.buffer) });
        command.require_ex();
        assert_eq!(command.all_flags(), CMD_FALLBACK_IOCTL_ONLY | CMD_FALLBACK_REQUIRE_EX);
        assert!(!command.has_driver_attributes());
    }
}
