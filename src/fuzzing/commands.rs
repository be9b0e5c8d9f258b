//! Commands of plugins to a kernel with arbitrary answers. The caller replaces `ioctl(2)` and
//! `write(2)` on one descriptor (`fuzz/src/kernel.rs`); this module plays the plugin.
//!
//! A handle or a number of events from the kernel is trusted as such. But no answer may make the
//! front-end touch memory beyond the caller's, or return more than requested. Destroying an object
//! waits for as many events as the kernel names, so destruction is left out.
//!
//! Map of this file: `FencedMemory`, the plugin's structures with a fence behind them; `Session`,
//! the commands, grouped by object; `Provider`, a command of the plugin's own.

use core::ffi::{c_int, c_void};
use core::marker::PhantomData;
use core::sync::atomic::Ordering;

use abi::*;
use cface::{Errno, MinusOne, Ret, mem};

use crate::front::command::{channel, gid, opening};
use crate::front::context::{Context, ContextState};
use crate::front::dummies::DUMMIES;
use crate::front::generation::NEWEST;
use crate::kabi::cmd;

/// Bytes behind memory that is lent to the front-end.
const FENCE: usize = 64;
const FENCE_BYTE: u8 = 0xa5;

/// Memory for a structure and the plugin's data behind it, followed by a fence that must stay
/// unchanged.
#[derive(Debug)]
struct FencedMemory<T> {
    words: Vec<u64>,
    size: usize,
    value_type: PhantomData<T>,
}

impl<T> FencedMemory<T> {
    /// With so many bytes.
    fn sized(size: usize) -> Self {
        let bytes = size.max(size_of::<T>()) + FENCE;
        let mut room = Self { words: vec![0; bytes.div_ceil(8)], size, value_type: PhantomData };
        let end = room.words.len() * 8;
        // SAFETY: within the memory of the words.
        unsafe {
            room.words.as_mut_ptr().cast::<u8>().add(size).write_bytes(FENCE_BYTE, end - size);
        }
        room
    }

    /// Just the structure.
    fn new() -> Self {
        Self::sized(size_of::<T>())
    }

    /// The structure, and driver data or none behind it, or too little.
    fn for_command(number: u64) -> Self {
        let driver = [0, 0, 4, 8, 24, 40].get(number as usize % 6).copied().unwrap_or(0);
        let short = usize::from(number >> 8 & 15 == 0) * 4;
        Self::sized((size_of::<T>() + driver).saturating_sub(short))
    }

    fn raw(&mut self) -> *mut T {
        self.words.as_mut_ptr().cast()
    }
}

impl<T> Drop for FencedMemory<T> {
    fn drop(&mut self) {
        // SAFETY: all of the words are initialised.
        let bytes = unsafe {
            core::slice::from_raw_parts(self.words.as_ptr().cast::<u8>(), self.words.len() * 8)
        };
        let fence = bytes.get(self.size..).unwrap_or_default();
        if !std::thread::panicking() {
            let whole = fence.iter().all(|byte| *byte == FENCE_BYTE);
            assert!(whole, "written behind a {}", core::any::type_name::<T>());
        }
    }
}

/// Only a panic has this result, because the C boundary maps panics to it and the fuzzed kernel
/// never returns it.
fn assert_no_panic<R: Ret + PartialEq + core::fmt::Debug>(result: R) {
    assert_ne!(result, R::fail(Errno::EIO));
}

/// A context of a plugin, and objects of it.
struct Session<'a> {
    next: &'a dyn Fn() -> u64,
    context: Context,
    pd: FencedMemory<ibv_pd>,
    cq: FencedMemory<verbs_cq>,
    qp: FencedMemory<verbs_qp>,
    srq: FencedMemory<verbs_srq>,
    mr: FencedMemory<verbs_mr>,
}

/// Sends commands of the kinds that `next` selects to the kernel behind `cmd_fd`, until `next`
/// returns 0 or the limit is reached.
pub fn commands(cmd_fd: c_int, next: &dyn Fn() -> u64) {
    let (Ok(memory), Ok(device)) =
        (mem::calloc_bytes(NEWEST.context_size()), mem::calloc::<verbs_device>())
    else {
        return;
    };
    // SAFETY: within the allocation, which has room for a context of this generation.
    let raw = unsafe { memory.byte_add(NEWEST.context_offset) }.cast();
    let private = Box::new(ContextState::new(NEWEST, 0, None));
    // SAFETY: zeroed memory of a context's size; a live device, and the newest table.
    let context = unsafe {
        let context = Context::init(raw, device.as_ptr(), cmd_fd, private);
        context.install(&raw const DUMMIES, NEWEST);
        context
    };
    let flags = next();
    context.private().use_ioctl_write.store(flags & 1 != 0, Ordering::Relaxed);
    context.private().imported.store(flags & 6 == 6, Ordering::Relaxed);
    let mut session = Session {
        next,
        context,
        pd: FencedMemory::new(),
        cq: FencedMemory::new(),
        qp: FencedMemory::new(),
        srq: FencedMemory::new(),
        mr: FencedMemory::new(),
    };
    session.set_up();
    for _ in 0..16 {
        match next() {
            0 => break,
            which => session.send(which % 28),
        }
    }
    drop(session);
    // SAFETY: the context is no longer used; both allocations were made above.
    unsafe {
        context.free_private_block();
        mem::free(memory.as_ptr());
        mem::free(device.as_ptr().cast());
    }
}

impl Session<'_> {
    fn raw(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    /// Objects name their context, whether or not their creation succeeds.
    fn set_up(&mut self) {
        let context = self.raw();
        // SAFETY: zeroed structures of ours.
        unsafe {
            (*self.pd.raw()).context = context;
            (*self.cq.raw().cast::<ibv_cq>()).context = context;
            (*self.qp.raw().cast::<ibv_qp>()).context = context;
            (*self.srq.raw().cast::<ibv_srq>()).context = context;
            (*self.mr.raw()).ibv_mr.context = context;
        }
    }

    fn room<T>(&self) -> (FencedMemory<T>, usize) {
        let room = FencedMemory::for_command((self.next)());
        let size = room.size;
        (room, size)
    }

    /// One command. Each match arm is a call as a plugin makes it.
    fn send(&mut self, which: u64) {
        match which {
            0..=8 => self.about_devices(which),
            9..=17 => self.about_queues(which),
            18..=23 => self.about_memory(which),
            _ => self.about_messages(which),
        }
    }

    fn about_devices(&mut self, which: u64) {
        let context = self.raw();
        // SAFETY: an open context; structures of ours, as long as their sizes say.
        unsafe {
            match which {
                0 => {
                    let verbs = context.byte_sub(NEWEST.context_offset).cast();
                    let (mut cmd, cmd_size) = self.room();
                    let (mut resp, resp_size) = self.room();
                    let none = core::ptr::null_mut();
                    assert_no_panic(cmd::context::get_context::<65>(
                        verbs,
                        cmd.raw(),
                        cmd_size,
                        none,
                        resp.raw(),
                        resp_size,
                    ));
                }
                1 => assert_no_panic(cmd::context::query_context(context, core::ptr::null_mut())),
                2 => {
                    let (mut attr, attr_size) = self.room();
                    let (mut resp, mut used) = self.room();
                    let wanted = (self.next)() & 1 != 0;
                    let resp = if wanted { resp.raw() } else { core::ptr::null_mut() };
                    assert_no_panic(cmd::device::query_device_any(
                        context,
                        core::ptr::null(),
                        attr.raw(),
                        attr_size,
                        resp,
                        &raw mut used,
                    ));
                }
                3 => {
                    let mut attr = FencedMemory::new();
                    let (mut cmd, cmd_size) = self.room();
                    assert_no_panic(cmd::device::query_port(
                        context,
                        1,
                        attr.raw(),
                        cmd.raw(),
                        cmd_size,
                    ));
                }
                4 => {
                    let mut speed = FencedMemory::new();
                    assert_no_panic(cmd::device::query_port_speed(context, 1, speed.raw()));
                }
                5 => {
                    let most = (self.next)() as usize % 5;
                    if let Ok(Some(found)) = gid::table(self.context, most, 0) {
                        assert!(found.len() <= most, "more entries than there was room for");
                    }
                    let _ = gid::entry(self.context, 1, 0, 0);
                }
                6 => {
                    let fd = (*context).cmd_fd;
                    opening::takes_wrapped_writes(fd, 0);
                    let _ = (opening::alloc_async_fd(fd, 0, None), channel::create(self.context));
                }
                7 => {
                    let mut caps: FencedMemory<ibv_comp_cntr_caps> = FencedMemory::new();
                    let size = caps.size;
                    assert_no_panic(cmd::comp_cntr::query_caps(context, caps.raw(), size));
                }
                _ => {
                    let (mut counter, mut value) =
                        (FencedMemory::<ibv_comp_cntr>::new(), FencedMemory::new());
                    (*counter.raw()).context = context;
                    assert_no_panic(cmd::comp_cntr::create(
                        context,
                        counter.raw(),
                        core::ptr::null_mut(),
                    ));
                    assert_no_panic(cmd::comp_cntr::read(counter.raw(), value.raw()));
                }
            }
        }
    }

    fn about_queues(&mut self, which: u64) {
        let context = self.raw();
        let number = (self.next)();
        let (cq, pd): (*mut ibv_cq, _) = (self.cq.raw().cast(), self.pd.raw());
        let (qp, srq) = (self.qp.raw(), self.srq.raw());
        let cap = ibv_qp_cap { max_send_wr: number as u32, ..ibv_qp_cap::zeroed() };
        // SAFETY: an open context; objects and structures of ours, as long as their sizes say.
        unsafe {
            match which {
                9 => {
                    let (mut cmd, cmd_size) = self.room();
                    let (mut resp, resp_size) = self.room();
                    let none = core::ptr::null_mut();
                    assert_no_panic(cmd::cq::create_cq(
                        context,
                        number as c_int,
                        none,
                        0,
                        cq,
                        cmd.raw(),
                        cmd_size,
                        resp.raw(),
                        resp_size,
                    ));
                }
                10 => {
                    let mut attr: FencedMemory<ibv_cq_init_attr_ex> = FencedMemory::new();
                    (*attr.raw()).wc_flags = number & 0x1ff;
                    let (mut cmd, cmd_size) = self.room();
                    let (mut resp, resp_size) = self.room();
                    let none = core::ptr::null_mut();
                    let mut chain = Provider::new(number);
                    assert_no_panic(cmd::cq::create_cq_ex2(
                        context,
                        attr.raw(),
                        none,
                        cq.cast(),
                        cmd.raw(),
                        cmd_size,
                        resp.raw(),
                        resp_size,
                        0,
                        chain.raw(),
                    ));
                }
                11 => {
                    let (mut cmd, cmd_size) = self.room();
                    let (mut resp, resp_size) = self.room();
                    assert_no_panic(cmd::cq::resize_cq(
                        cq,
                        number as c_int,
                        cmd.raw(),
                        cmd_size,
                        resp.raw(),
                        resp_size,
                    ));
                }
                12 => {
                    let mut attr: FencedMemory<ibv_qp_init_attr> = FencedMemory::new();
                    attr.raw().write(ibv_qp_init_attr {
                        send_cq: cq,
                        recv_cq: cq,
                        qp_type: IBV_QPT_RC,
                        cap,
                        ..ibv_qp_init_attr::zeroed()
                    });
                    let (mut cmd, cmd_size) = self.room();
                    let (mut resp, resp_size) = self.room();
                    assert_no_panic(cmd::qp::create_qp(
                        pd,
                        qp.cast(),
                        attr.raw(),
                        cmd.raw(),
                        cmd_size,
                        resp.raw(),
                        resp_size,
                    ));
                }
                13 => {
                    let mut attr: FencedMemory<ibv_qp_init_attr_ex> = FencedMemory::new();
                    attr.raw().write(ibv_qp_init_attr_ex {
                        send_cq: cq,
                        recv_cq: cq,
                        pd,
                        qp_type: IBV_QPT_UD,
                        comp_mask: IBV_QP_INIT_ATTR_PD,
                        cap,
                        ..ibv_qp_init_attr_ex::zeroed()
                    });
                    let (mut cmd, cmd_size) = self.room();
                    let (mut resp, resp_size) = self.room();
                    let mut chain = Provider::new(number);
                    assert_no_panic(cmd::qp::create_qp_ex2(
                        context,
                        qp,
                        attr.raw(),
                        cmd.raw(),
                        cmd_size,
                        resp.raw(),
                        resp_size,
                        chain.raw(),
                    ));
                }
                14 => {
                    let (mut attr, mut init) = (FencedMemory::new(), FencedMemory::new());
                    let (mut cmd, cmd_size) = self.room();
                    assert_no_panic(cmd::qp_modify::query_qp(
                        qp.cast(),
                        attr.raw(),
                        1,
                        init.raw(),
                        cmd.raw(),
                        cmd_size,
                    ));
                }
                15 => {
                    let mut attr = FencedMemory::new();
                    let (mut cmd, cmd_size) = self.room();
                    let (mut resp, resp_size) = self.room();
                    assert_no_panic(cmd::srq::create_srq(
                        pd,
                        srq.cast(),
                        attr.raw(),
                        cmd.raw(),
                        cmd_size,
                        resp.raw(),
                        resp_size,
                    ));
                    let (mut attr, (mut cmd, cmd_size)) = (FencedMemory::new(), self.room());
                    assert_no_panic(cmd::srq::query_srq(
                        srq.cast(),
                        attr.raw(),
                        cmd.raw(),
                        cmd_size,
                    ));
                }
                16 => {
                    let mut attr: FencedMemory<ibv_wq_init_attr> = FencedMemory::new();
                    attr.raw().write(ibv_wq_init_attr { pd, cq, ..ibv_wq_init_attr::zeroed() });
                    let mut wq = FencedMemory::new();
                    let (mut cmd, cmd_size) = self.room();
                    let (mut resp, resp_size) = self.room();
                    assert_no_panic(cmd::wq::create_wq(
                        context,
                        attr.raw(),
                        wq.raw(),
                        cmd.raw(),
                        cmd_size,
                        resp.raw(),
                        resp_size,
                    ));
                }
                _ => {
                    let mut attr: FencedMemory<ibv_srq_init_attr_ex> = FencedMemory::new();
                    attr.raw().write(ibv_srq_init_attr_ex {
                        pd,
                        cq,
                        comp_mask: IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE,
                        ..ibv_srq_init_attr_ex::zeroed()
                    });
                    let (mut cmd, cmd_size) = self.room();
                    let (mut resp, resp_size) = self.room();
                    assert_no_panic(cmd::srq::create_srq_ex(
                        context,
                        srq,
                        attr.raw(),
                        cmd.raw(),
                        cmd_size,
                        resp.raw(),
                        resp_size,
                    ));
                }
            }
        }
    }

    fn about_memory(&mut self, which: u64) {
        let context = self.raw();
        let (pd, mr) = (self.pd.raw(), self.mr.raw());
        let number = (self.next)();
        // SAFETY: as in `about_queues`; the addresses of regions are only numbers here.
        unsafe {
            match which {
                18 => {
                    let (mut cmd, cmd_size) = self.room();
                    let (mut resp, resp_size) = self.room();
                    assert_no_panic(cmd::pd::alloc_pd(
                        context,
                        pd,
                        cmd.raw(),
                        cmd_size,
                        resp.raw(),
                        resp_size,
                    ));
                }
                19 => {
                    let at: *mut c_void = core::ptr::without_provenance_mut(0x1000);
                    let (mut cmd, cmd_size) = self.room();
                    let (mut resp, resp_size) = self.room();
                    assert_no_panic(cmd::mr::reg_mr(
                        pd,
                        at,
                        4096,
                        number,
                        1,
                        mr,
                        cmd.raw(),
                        cmd_size,
                        resp.raw(),
                        resp_size,
                    ));
                }
                20 => assert_no_panic(cmd::mr::query_mr(pd, mr, number as u32)),
                21 => {
                    let mut chain = Provider::new(number);
                    assert_no_panic(cmd::mr::reg_dmabuf_mr(
                        pd,
                        0,
                        4096,
                        number,
                        3,
                        1,
                        mr,
                        chain.raw(),
                    ));
                }
                22 => {
                    let attr = ibv_alloc_dm_attr {
                        length: number as usize,
                        ..ibv_alloc_dm_attr::zeroed()
                    };
                    let (mut dm, mut chain) =
                        (FencedMemory::<verbs_dm>::new(), Provider::new(number));
                    assert_no_panic(cmd::dm::alloc_dm(
                        context,
                        &raw const attr,
                        dm.raw(),
                        chain.raw(),
                    ));
                    let none = core::ptr::null_mut();
                    assert_no_panic(cmd::dm::reg_dm_mr(pd, dm.raw(), 0, 8, 1, mr, none));
                }
                _ => {
                    let mut counters: FencedMemory<verbs_counters> = FencedMemory::new();
                    (*counters.raw()).counters.context = context;
                    let count = number % 5;
                    let mut values: FencedMemory<u64> = FencedMemory::sized(count as usize * 8);
                    let none = core::ptr::null_mut();
                    assert_no_panic(cmd::counters::read_counters(
                        counters.raw(),
                        values.raw(),
                        count as u32,
                        0,
                        none,
                    ));
                }
            }
        }
    }

    fn about_messages(&mut self, which: u64) {
        let context = self.raw();
        let number = (self.next)();
        let (cq, qp): (*mut ibv_cq, *mut ibv_qp) = (self.cq.raw().cast(), self.qp.raw().cast());
        // SAFETY: as in `about_queues`; the lists end with NULL and have no elements.
        unsafe {
            match which {
                24 => {
                    let most = number % 5;
                    let mut wc: FencedMemory<ibv_wc> =
                        FencedMemory::sized(most as usize * size_of::<ibv_wc>());
                    let MinusOne(got) = cmd::poll::poll_cq(cq, most as c_int, wc.raw());
                    assert!((-1..=most as c_int).contains(&got), "{got} completions of {most}");
                }
                25 => {
                    let mut list: [ibv_recv_wr; 3] =
                        core::array::from_fn(|_| ibv_recv_wr::zeroed());
                    let first = list.as_mut_ptr();
                    (*first).next = first.add(1);
                    (*first.add(1)).next = first.add(2);
                    let mut bad = core::ptr::null_mut();
                    assert_no_panic(cmd::post::post_recv(qp, first, &raw mut bad));
                    let at = (bad.addr().wrapping_sub(first.addr())) / size_of::<ibv_recv_wr>();
                    assert!(bad.is_null() || at < 3, "a request that is none of the list");
                }
                26 => {
                    let (mut ah, mut attr) = (FencedMemory::<ibv_ah>::new(), FencedMemory::new());
                    let (mut resp, resp_size) = self.room();
                    assert_no_panic(cmd::ah::create_ah(
                        self.pd.raw(),
                        ah.raw(),
                        attr.raw(),
                        resp.raw(),
                        resp_size,
                    ));
                }
                _ => {
                    // Inline code of rdma-core sends its own commands this way, repeatedly.
                    let mut provider = Provider::new(number);
                    assert_no_panic(cmd::execute::execute_ioctl(context, provider.raw()));
                    let (mut xrcd, mut attr) =
                        (FencedMemory::<verbs_xrcd>::new(), FencedMemory::new());
                    let size = size_of::<verbs_xrcd>() as c_int;
                    let (mut cmd, cmd_size) = self.room();
                    let (mut resp, resp_size) = self.room();
                    assert_no_panic(cmd::xrcd::open_xrcd(
                        context,
                        xrcd.raw(),
                        size,
                        attr.raw(),
                        cmd.raw(),
                        cmd_size,
                        resp.raw(),
                        resp_size,
                    ));
                }
            }
        }
    }
}

/// Attributes of a plugin's own, for which the kernel has memory: by the rule of the fuzz target's
/// kernel even ones are answers.
#[derive(Debug)]
struct Provider {
    room: FencedMemory<ibv_command_buffer>,
    answers: [FencedMemory<[u64; 2]>; 2],
}

/// The first attribute of drivers.
const DRIVERS_OWN: u16 = 0x1000;

impl Provider {
    fn new(number: u64) -> Self {
        const ATTRS: usize =
            core::mem::offset_of!(ibv_command_buffer, hdr) + size_of::<ib_uverbs_ioctl_hdr>();
        let count = number as usize % 4;
        let mut provider = Self {
            room: FencedMemory::sized(ATTRS + count * size_of::<ib_uverbs_attr>()),
            answers: [FencedMemory::new(), FencedMemory::new()],
        };
        let addresses =
            provider.answers.each_mut().map(|answer| answer.raw().expose_provenance() as u64);
        let raw = provider.room.raw();
        let first: *mut ib_uverbs_attr = raw.wrapping_byte_add(ATTRS).cast();
        // SAFETY: the room has place for the buffer and so many attributes.
        unsafe {
            let mut buffer = ibv_command_buffer::zeroed();
            buffer.next_attr = first.add(count);
            buffer.last_attr = buffer.next_attr;
            (buffer.uhw_in_idx, buffer.uhw_out_idx) = (UHW_NO_INDEX, UHW_NO_INDEX);
            buffer.hdr.object_id = UVERBS_OBJECT_DEVICE;
            buffer.hdr.method_id = DRIVERS_OWN;
            raw.write(buffer);
            for at in 0..count {
                let mut attr = ib_uverbs_attr::zeroed();
                attr.attr_id = UVERBS_ATTR_UHW_OUT + 1 + at as u16;
                attr.len = 16;
                attr.data = addresses[at % 2];
                first.add(at).write(attr);
            }
        }
        provider
    }

    fn raw(&mut self) -> *mut ibv_command_buffer {
        self.room.raw()
    }
}
