//! Objects of libibverbs that this library makes: devices, completion queues, registered memory,
//! queue pairs and address handles.
//! A value here owns its C object, so agents and rsockets need no pointers.
//!
//! Map of this file: devices and contexts; domains; address handles; registered memory (`Region`,
//! `Memory`); completion queues and channels; queue pairs. A value may move between threads,
//! because libibverbs locks its objects itself.

use crate::sys::{descriptors, processes, verbs};
use abi::*;
use cface::Errno;
use std::ffi::{CStr, c_int};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};

/// The result of a verb that returns an errno.
pub(crate) fn check_errno(error: c_int) -> Result<(), Errno> {
    if error == 0 { Ok(()) } else { Err(Errno::from_raw(error)) }
}

/// The object that a verb created, or the verb's errno.
fn created<T>(object: *mut T) -> Result<NonNull<T>, Errno> {
    NonNull::new(object).ok_or_else(Errno::last)
}

/// Reads a file of sysfs, below the folder that libibverbs uses. Returns the number of bytes.
pub(crate) fn read_sysfs(file: &CStr, text: &mut [u8]) -> Option<usize> {
    // SAFETY: the folder is a static string of the library, and `text` has the stated size.
    let len = unsafe {
        let root = verbs::ibv_get_sysfs_path();
        verbs::ibv_read_sysfs_file(root, file.as_ptr(), text.as_mut_ptr().cast(), text.len())
    };
    Some(usize::try_from(len).ok()?.min(text.len()))
}

/// A device of the list of libibverbs, valid until the list is freed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedDevice<'a>(NonNull<ibv_device>, PhantomData<&'a ()>);

/// Calls `f` for each device until `f` returns a value.
pub(crate) fn find_device<T>(f: impl FnMut(ListedDevice<'_>) -> Option<T>) -> Option<T> {
    let mut count = 0;
    // SAFETY: `count` is writable.
    let list = unsafe { verbs::ibv_get_device_list(&raw mut count) };
    if list.is_null() {
        return None;
    }
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the list has `count` devices until it is freed below.
    let devices = (0..count).filter_map(|at| NonNull::new(unsafe { *list.add(at) }));
    let found = devices.map(|device| ListedDevice(device, PhantomData)).find_map(f);
    // SAFETY: the list is from above and not used afterwards.
    unsafe { verbs::ibv_free_device_list(list) };
    found
}

impl ListedDevice<'_> {
    /// Whether the plugin of the device announced the device, so that the kernel has no such
    /// device.
    pub(crate) fn is_announced(self) -> bool {
        // SAFETY: the list is not freed yet, so the device is live.
        unsafe { processes::extension(self.0.as_ptr()) }.is_some()
    }

    pub(crate) fn name(self) -> String {
        // SAFETY: the device is live, and its name ends with NUL.
        let name = unsafe { CStr::from_ptr((*self.0.as_ptr()).name.as_ptr()) };
        name.to_string_lossy().into_owned()
    }

    /// The node GUID in network byte order, and the kernel's index of the device; -1 if unknown.
    pub(crate) fn identity(self) -> (u64, i32) {
        let device = self.0.as_ptr();
        // SAFETY: the device is live.
        unsafe { (verbs::ibv_get_device_guid(device), verbs::ibv_get_device_index(device)) }
    }

    /// Opens the device.
    ///
    /// # Errors
    /// `ENODEV` the device cannot be opened.
    pub(crate) fn open(self) -> Result<Context, Errno> {
        // SAFETY: the device is live.
        let context = unsafe { verbs::ibv_open_device(self.0.as_ptr()) };
        NonNull::new(context).map(Context).ok_or(Errno::ENODEV)
    }
}

/// An open device. This library never closes a device, because ids and programs keep the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context(NonNull<ibv_context>);

// SAFETY: any thread may use a context (verbs are thread safe).
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The context of an id; `None` for NULL.
    ///
    /// # Safety
    /// `context` is NULL, or open and never closed.
    pub(crate) const unsafe fn of(context: *mut ibv_context) -> Option<Self> {
        match NonNull::new(context) {
            Some(context) => Some(Self(context)),
            None => None,
        }
    }

    /// The address that C code has.
    pub(crate) const fn as_c(self) -> *mut ibv_context {
        self.0.as_ptr()
    }

    /// The limits of the device.
    ///
    /// # Errors
    /// The errno of the device.
    pub(crate) fn limits(self) -> Result<ibv_device_attr, Errno> {
        let mut attr = ibv_device_attr::zeroed();
        // SAFETY: the context is open; `attr` is writable.
        check_errno(unsafe { verbs::ibv_query_device(self.as_c(), &raw mut attr) }).map(|()| attr)
    }

    /// The attributes of a port.
    ///
    /// # Errors
    /// The errno of the device.
    pub(crate) fn port(self, number: u8) -> Result<compat_ibv_port_attr, Errno> {
        let mut attr = compat_ibv_port_attr::zeroed();
        // SAFETY: the context is open; `attr` is writable.
        check_errno(unsafe { verbs::ibv_query_port(self.as_c(), number, &raw mut attr) })
            .map(|()| attr)
    }

    /// The entries of the device's GID table.
    pub(crate) fn gid_table(self) -> Vec<ibv_gid_entry> {
        let mut entries: Vec<ibv_gid_entry> = Vec::with_capacity(256);
        // SAFETY: the context is open, and the vector has room for `capacity` entries.
        let count = unsafe {
            verbs::_ibv_query_gid_table(
                self.as_c(),
                entries.as_mut_ptr(),
                entries.capacity(),
                0,
                size_of::<ibv_gid_entry>(),
            )
        };
        let count = usize::try_from(count).unwrap_or(0).min(entries.capacity());
        // SAFETY: the call above wrote `count` entries.
        unsafe { entries.set_len(count) };
        entries
    }

    /// The index of a partition key of a port.
    ///
    /// # Errors
    /// `EINVAL` the port lacks the key.
    pub(crate) fn pkey_index(self, port: u8, pkey: u16) -> Result<u16, Errno> {
        // SAFETY: the context is open.
        let index = unsafe { verbs::ibv_get_pkey_index(self.as_c(), port, pkey) };
        u16::try_from(index).map_err(|_| Errno::EINVAL)
    }

    /// The transport of the device.
    pub(crate) fn transport(self) -> ibv_transport_type {
        // SAFETY: an open context has a device.
        unsafe { (*(*self.as_c()).device).transport_type }
    }

    /// An XRC domain for this process alone.
    ///
    /// # Errors
    /// The errno of the device.
    pub(crate) fn open_xrc_domain(self) -> Result<XrcDomain, Errno> {
        // SAFETY: the context is open.
        created(unsafe { verbs::open_xrcd(self.as_c()) }).map(XrcDomain)
    }

    /// A protection domain, which is never deallocated.
    ///
    /// # Errors
    /// The errno of the device.
    pub(crate) fn allocate_domain(self) -> Result<Domain, Errno> {
        // SAFETY: the context is open.
        created(unsafe { verbs::ibv_alloc_pd(self.as_c()) }).map(Domain)
    }
}

/// An XRC domain, which is never closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct XrcDomain(NonNull<ibv_xrcd>);

// SAFETY: any thread may use a domain.
unsafe impl Send for XrcDomain {}
// SAFETY: as above.
unsafe impl Sync for XrcDomain {}

impl XrcDomain {
    /// The address that C code has.
    pub(crate) const fn as_c(self) -> *mut ibv_xrcd {
        self.0.as_ptr()
    }
}

/// A protection domain that lives as long as the objects made in it: a domain of this library,
/// which is never deallocated, or the domain of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Domain(NonNull<ibv_pd>);

// SAFETY: any thread may use a domain.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// The domain of an id; `None` for NULL.
    ///
    /// # Safety
    /// `pd` is NULL, or live while an object made in it lives.
    pub(crate) const unsafe fn of(pd: *mut ibv_pd) -> Option<Self> {
        match NonNull::new(pd) {
            Some(pd) => Some(Self(pd)),
            None => None,
        }
    }

    /// The address that C code has.
    pub(crate) const fn as_c(self) -> *mut ibv_pd {
        self.0.as_ptr()
    }

    /// An address handle.
    ///
    /// # Errors
    /// The errno of the device.
    pub(crate) fn address_handle(self, mut attr: ibv_ah_attr) -> Result<AddressHandle, Errno> {
        // SAFETY: the domain is live; `attr` is readable.
        created(unsafe { verbs::ibv_create_ah(self.as_c(), &raw mut attr) }).map(AddressHandle)
    }
}

/// An address handle. Posted requests do not need it any more.
#[derive(Debug)]
pub(crate) struct AddressHandle(NonNull<ibv_ah>);

// SAFETY: any thread may use address handles.
unsafe impl Send for AddressHandle {}
// SAFETY: as above.
unsafe impl Sync for AddressHandle {}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: this value owns the handle.
        unsafe { verbs::ibv_destroy_ah(self.0.as_ptr()) };
    }
}

/// A memory region over memory that this value does not own.
#[derive(Debug)]
pub(crate) struct Region(NonNull<ibv_mr>);

// SAFETY: any thread may use memory regions.
unsafe impl Send for Region {}
// SAFETY: both keys are constant.
unsafe impl Sync for Region {}

impl Region {
    /// Registers `bytes` bytes at `base`.
    ///
    /// # Errors
    /// The errno of the device.
    ///
    /// # Safety
    /// The memory stays until this value is dropped.
    pub(crate) unsafe fn new(
        pd: Domain,
        base: *mut u8,
        bytes: usize,
        access: u32,
    ) -> Result<Self, Errno> {
        let access = access.cast_signed();
        // SAFETY: the domain is live, and the memory stays by contract.
        created(unsafe { verbs::ibv_reg_mr(pd.as_c(), base.cast(), bytes, access) }).map(Self)
    }

    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: the region lives as long as this value.
        unsafe { (*self.0.as_ptr()).lkey }
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the region lives as long as this value.
        unsafe { (*self.0.as_ptr()).rkey }
    }

    /// Deregisters the memory. Returns whether the device agreed.
    fn deregister(&mut self) -> bool {
        // SAFETY: this value owns the region.
        unsafe { verbs::ibv_dereg_mr(self.0.as_ptr()) == 0 }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.deregister();
    }
}

/// Pages with their memory region. The device reads and writes them while this process does, so no
/// Rust reference to the bytes exists.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    region: std::mem::ManuallyDrop<Region>,
}

// SAFETY: the pages belong to this value; copies are checked against their length.
unsafe impl Send for Memory {}
// SAFETY: callers that share a range use a lock of their own.
unsafe impl Sync for Memory {}

impl Memory {
    /// New memory of zeros.
    ///
    /// # Errors
    /// The errno of the system or device.
    pub(crate) fn new(pd: Domain, bytes: usize, access: u32) -> Result<Self, Errno> {
        let bytes = bytes.max(1);
        let (read, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new pages at an address of the kernel's choice.
        let base = unsafe { libc::mmap(null_mut(), bytes, read, kind, -1, 0) };
        let base = NonNull::new(base.cast::<u8>())
            .filter(|base| base.as_ptr().cast() != libc::MAP_FAILED)
            .ok_or_else(Errno::last)?;
        // SAFETY: the pages stay until the region is deregistered.
        match unsafe { Region::new(pd, base.as_ptr(), bytes, access) } {
            Ok(region) => Ok(Self { base, bytes, region: std::mem::ManuallyDrop::new(region) }),
            Err(why) => {
                // SAFETY: mapped above, and nobody knows the pages.
                unsafe { libc::munmap(base.as_ptr().cast(), bytes) };
                Err(why)
            }
        }
    }

    /// The address of a byte.
    pub(crate) fn address_of(&self, at: u32) -> u64 {
        self.base.as_ptr() as u64 + u64::from(at)
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.region.lkey()
    }

    pub(crate) fn rkey(&self) -> u32 {
        self.region.rkey()
    }

    /// A pointer to `bytes` bytes at `at`.
    ///
    /// # Errors
    /// `EFAULT` out of range.
    pub(crate) fn pointer(&self, at: u32, bytes: usize) -> Result<*mut u8, Errno> {
        let at = at as usize;
        let end = at.checked_add(bytes).filter(|&end| end <= self.bytes);
        end.map(|_| self.base.as_ptr().wrapping_add(at)).ok_or(Errno::EFAULT)
    }

    /// Copies from the memory.
    ///
    /// # Errors
    /// `EFAULT` out of range.
    pub(crate) fn read(&self, at: u32, to: &mut [u8]) -> Result<(), Errno> {
        let from = self.pointer(at, to.len())?;
        // SAFETY: the range is checked, and `to` lies elsewhere.
        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies into the memory.
    ///
    /// # Errors
    /// `EFAULT` out of range.
    pub(crate) fn write(&self, at: u32, from: &[u8]) -> Result<(), Errno> {
        let to = self.pointer(at, from.len())?;
        // SAFETY: the range is checked, and `from` lies elsewhere.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        Ok(())
    }

    /// A copy of `N` bytes.
    ///
    /// # Errors
    /// `EFAULT` out of range.
    pub(crate) fn array<const N: usize>(&self, at: u32) -> Result<[u8; N], Errno> {
        let mut bytes = [0; N];
        self.read(at, &mut bytes)?;
        Ok(bytes)
    }

    /// The scatter entry of `bytes` bytes at `at`.
    fn entry(&self, at: u32, bytes: u32) -> Result<ibv_sge, Errno> {
        self.pointer(at, bytes as usize)?;
        Ok(ibv_sge { addr: self.address_of(at), length: bytes, lkey: self.lkey() })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // If the device refuses, region and pages stay.
        if self.region.deregister() {
            // SAFETY: this value owns the pages, and no region uses them any more.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
        }
    }
}

/// The number of completions that one poll takes.
const BATCH: usize = 32;

/// A completion queue, with or without a channel.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    context: Context,
    cq: NonNull<ibv_cq>,
    /// `None`: the queue is only polled.
    channel: Option<Channel>,
}

// SAFETY: any thread may use completion queues.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

/// A completion channel.
#[derive(Debug)]
struct Channel(NonNull<ibv_comp_channel>);

impl Channel {
    fn new(context: Context) -> Result<Self, Errno> {
        // SAFETY: the context is open.
        created(unsafe { verbs::ibv_create_comp_channel(context.as_c()) }).map(Self)
    }

    fn fd(&self) -> c_int {
        // SAFETY: the channel lives as long as this value.
        unsafe { (*self.0.as_ptr()).fd }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: this value owns the channel, and its queue is destroyed.
        unsafe { verbs::ibv_destroy_comp_channel(self.0.as_ptr()) };
    }
}

impl CompletionQueue {
    /// A queue with room for `entries` completions; its channel is non-blocking.
    ///
    /// # Errors
    /// The errno of the device or system.
    pub(crate) fn new(context: Context, entries: u32) -> Result<Self, Errno> {
        let channel = Channel::new(context)?;
        descriptors::set_nonblocking(channel.fd())?;
        Self::with_channel(context, entries, Some(channel))
    }

    /// A queue that is only polled.
    ///
    /// # Errors
    /// The errno of the device.
    pub(crate) fn polled(context: Context, entries: u32) -> Result<Self, Errno> {
        Self::with_channel(context, entries, None)
    }

    fn with_channel(
        context: Context,
        entries: u32,
        channel: Option<Channel>,
    ) -> Result<Self, Errno> {
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let at = channel.as_ref().map_or(null_mut(), |channel| channel.0.as_ptr());
        // SAFETY: context and channel are live.
        let cq = unsafe { verbs::ibv_create_cq(context.as_c(), entries, null_mut(), at, 0) };
        Ok(Self { context, cq: created(cq)?, channel })
    }

    /// The address that C code has.
    pub(crate) const fn as_c(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }

    /// The descriptor that is readable after a completion of an armed queue; -1 for a queue that is
    /// only polled.
    pub(crate) fn fd(&self) -> c_int {
        self.channel.as_ref().map_or(-1, Channel::fd)
    }

    /// Calls `f` with each of the next completions. Returns `false` without any.
    pub(crate) fn poll(&self, mut f: impl FnMut(&ibv_wc)) -> bool {
        let mut completions = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        // SAFETY: context and queue are live; the array has `BATCH` entries.
        let count = unsafe {
            let Some(poll) = (*self.context.as_c()).ops.poll_cq else { return false };
            poll(self.as_c(), BATCH as c_int, completions.as_mut_ptr().cast())
        };
        let count = usize::try_from(count).unwrap_or(0);
        for wc in completions.iter().take(count) {
            // SAFETY: the device filled in the first `count` entries.
            f(unsafe { wc.assume_init_ref() });
        }
        count > 0
    }

    /// Up to 64 completions, on the heap: a thread of a program may have a small stack.
    pub(crate) fn completions(&self) -> Vec<ibv_wc> {
        let mut found = Vec::with_capacity(64);
        // SAFETY: context and queue are live, and the vector has room for 64 completions, of which
        // the device fills in `count`.
        unsafe {
            if let Some(poll) = (*self.context.as_c()).ops.poll_cq {
                let count = poll(self.as_c(), 64, found.as_mut_ptr());
                found.set_len(usize::try_from(count).unwrap_or(0).min(64));
            }
        }
        found
    }

    /// Arms the queue, so that the next completion makes the descriptor readable.
    pub(crate) fn arm(&self) {
        // SAFETY: context and queue are live.
        unsafe {
            if let Some(notify) = (*self.context.as_c()).ops.req_notify_cq {
                notify(self.as_c(), 0);
            }
        }
    }

    /// Takes an event off the descriptor; returns `false` without one.
    pub(crate) fn take_event(&self) -> bool {
        let Some(Channel(channel)) = &self.channel else { return false };
        let (mut cq, mut context) = (null_mut(), null_mut());
        let channel = channel.as_ptr();
        // SAFETY: channel and queue are live, and the channel is non-blocking.
        unsafe {
            let taken = verbs::ibv_get_cq_event(channel, &raw mut cq, &raw mut context) == 0;
            if taken {
                verbs::ibv_ack_cq_events(cq, 1);
            }
            taken
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: this value owns the queue, and no queue pair uses it any more.
        unsafe { verbs::ibv_destroy_cq(self.as_c()) };
    }
}

/// The immediate data of a completion, in host order; any number without immediate data.
pub(crate) const fn immediate(wc: &ibv_wc) -> u32 {
    // SAFETY: all views are plain integers.
    u32::from_be(unsafe { wc.imm.imm_data })
}

/// The target of a send request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'a> {
    /// An RDMA WRITE: address and key of the peer.
    Remote(u64, u32),
    /// A datagram: address handle, queue pair number and Q_Key.
    Datagram(&'a AddressHandle, u32, u32),
}

/// A send request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendRequest<'a> {
    /// The `wr_id`.
    pub(crate) name: u64,
    pub(crate) opcode: ibv_wr_opcode,
    /// `ibv_send_flags`; `IBV_SEND_INLINE` is set for an inline payload.
    pub(crate) flags: u32,
    /// Immediate data in network order; 0 for none.
    pub(crate) immediate: u32,
    pub(crate) target: Target<'a>,
}

/// The bytes of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    None,
    /// Bytes that the device copies during the call.
    Inline(&'a [u8]),
    /// Memory of the queue pair by its number, with offset and length.
    Memory(usize, u32, u32),
}

/// A queue pair, with the memory that its requests use.
#[derive(Debug)]
pub(crate) struct QueuePair {
    qp: NonNull<ibv_qp>,
    context: Context,
    memory: Vec<Memory>,
    /// True: this value destroys the queue pair. False: an id does, before this value is dropped.
    is_owner: bool,
}

// SAFETY: any thread may use queue pairs.
unsafe impl Send for QueuePair {}
// SAFETY: as above; the memory is used as the type of its owner states.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Creates a datagram queue pair, which this value owns.
    ///
    /// # Errors
    /// The errno of the device.
    pub(crate) fn datagrams(
        (context, pd): (Context, Domain),
        (send_cq, recv_cq): (&CompletionQueue, &CompletionQueue),
        (sends, receives): (u32, u32),
        memory: Vec<Memory>,
    ) -> Result<Self, Errno> {
        let mut init = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: send_cq.as_c(),
            recv_cq: recv_cq.as_c(),
            srq: null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: sends,
                max_recv_wr: receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: IBV_QPT_UD,
            sq_sig_all: 1,
        };
        // SAFETY: the domain and both queues are live.
        let qp = created(unsafe { verbs::ibv_create_qp(pd.as_c(), &raw mut init) })?;
        Ok(Self { qp, context, memory, is_owner: true })
    }

    /// The queue pair of an id.
    ///
    /// # Safety
    /// `qp` is live, and is destroyed before this value is dropped.
    pub(crate) unsafe fn of_id(qp: NonNull<ibv_qp>, context: Context, memory: Vec<Memory>) -> Self {
        Self { qp, context, memory, is_owner: false }
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair lives as long as this value is used.
        unsafe { (*self.qp.as_ptr()).qp_num }
    }

    /// Memory by its number, in the order of creation.
    ///
    /// # Errors
    /// `EFAULT` no such memory.
    pub(crate) fn memory(&self, number: usize) -> Result<&Memory, Errno> {
        self.memory.get(number).ok_or(Errno::EFAULT)
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// The errno of the device.
    pub(crate) fn modify(&self, mut attr: ibv_qp_attr, mask: u32) -> Result<(), Errno> {
        // SAFETY: the queue pair is live; `attr` is readable.
        check_errno(unsafe {
            verbs::ibv_modify_qp(self.qp.as_ptr(), &raw mut attr, mask.cast_signed())
        })
    }

    /// Joins a multicast group.
    ///
    /// # Errors
    /// The errno of the device.
    pub(crate) fn attach(&self, group: ibv_gid) -> Result<(), Errno> {
        // SAFETY: the queue pair is live, and `group` is readable.
        check_errno(unsafe { verbs::ibv_attach_mcast(self.qp.as_ptr(), &raw const group, 0) })
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// `EINVAL` the queue pair is no member.
    pub(crate) fn detach(&self, group: ibv_gid) -> Result<(), Errno> {
        // SAFETY: the queue pair is live, and `group` is readable.
        check_errno(unsafe { verbs::ibv_detach_mcast(self.qp.as_ptr(), &raw const group, 0) })
    }

    /// The scatter entry of a payload.
    fn entry(&self, payload: Payload<'_>) -> Result<Option<ibv_sge>, Errno> {
        Ok(match payload {
            Payload::None => None,
            Payload::Inline(bytes) => {
                let length = u32::try_from(bytes.len()).map_err(|_| Errno::EINVAL)?;
                Some(ibv_sge { addr: bytes.as_ptr() as u64, length, lkey: 0 })
            }
            Payload::Memory(number, at, bytes) => Some(self.memory(number)?.entry(at, bytes)?),
        })
    }

    /// Posts a receive into memory of the queue pair, or without memory.
    ///
    /// # Errors
    /// `EFAULT` out of range; `EINVAL` inline bytes; else the errno of the device.
    pub(crate) fn receive(&self, name: u64, into: Payload<'_>) -> Result<(), Errno> {
        if matches!(into, Payload::Inline(_)) {
            return Err(Errno::EINVAL);
        }
        let mut sge = self.entry(into)?;
        let sg_list = sge.as_mut().map_or(null_mut(), std::ptr::from_mut);
        let num_sge = c_int::from(!sg_list.is_null());
        let mut request = ibv_recv_wr { wr_id: name, next: null_mut(), sg_list, num_sge };
        let mut bad = null_mut();
        // SAFETY: context and queue pair are live; the request lives during the call; its memory
        // lives longer than the queue pair.
        check_errno(unsafe {
            let post = (*self.context.as_c()).ops.post_recv.ok_or(Errno::EOPNOTSUPP)?;
            post(self.qp.as_ptr(), &raw mut request, &raw mut bad)
        })
    }

    /// Posts a send request.
    ///
    /// # Errors
    /// `EFAULT` out of range; else the errno of the device.
    pub(crate) fn send(&self, asked: &SendRequest<'_>, from: Payload<'_>) -> Result<(), Errno> {
        let mut sge = self.entry(from)?;
        let inline = if matches!(from, Payload::Inline(_)) { IBV_SEND_INLINE } else { 0 };
        let wr = match asked.target {
            Target::Remote(remote_addr, rkey) => {
                ibv_send_wr_wr { rdma: ibv_send_wr_rdma { remote_addr, rkey } }
            }
            Target::Datagram(ah, remote_qpn, remote_qkey) => {
                let ah = ah.0.as_ptr();
                ibv_send_wr_wr { ud: ibv_send_wr_ud { ah, remote_qpn, remote_qkey } }
            }
        };
        let mut request = ibv_send_wr {
            wr_id: asked.name,
            next: null_mut(),
            sg_list: sge.as_mut().map_or(null_mut(), std::ptr::from_mut),
            num_sge: 0,
            opcode: asked.opcode,
            send_flags: asked.flags | inline,
            imm: ibv_send_wr_imm { imm_data: asked.immediate },
            wr,
            qp_type: ibv_send_wr_qp_type { xrc: ibv_send_wr_xrc { remote_srqn: 0 } },
            tail: ibv_send_wr_tail { tso: ibv_send_wr_tso { hdr: null_mut(), hdr_sz: 0, mss: 0 } },
        };
        request.num_sge = c_int::from(!request.sg_list.is_null());
        let mut bad = null_mut();
        // SAFETY: context, queue pair and address handle are live; the request and inline bytes
        // live during the call; other memory lives longer than the queue pair.
        check_errno(unsafe {
            let post = (*self.context.as_c()).ops.post_send.ok_or(Errno::EOPNOTSUPP)?;
            post(self.qp.as_ptr(), &raw mut request, &raw mut bad)
        })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if self.is_owner {
            // SAFETY: this value owns the queue pair, and no other thread uses it any more.
            unsafe { verbs::ibv_destroy_qp(self.qp.as_ptr()) };
        }
    }
}
