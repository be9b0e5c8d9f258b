//! Layers between a program and this library (docs/reference/layers.md): shared objects that
//! `FERROVERBS_LAYERS` names.
//! Each exported name jumps to the function in [`TABLE`]; without layers that is the library's own
//! function.
//!
//! A program's first call creates an object or a list. Five such calls load the layers, once for
//! each process.
//!
//! Map of this file: `TABLE`, one pointer for each exported name; the macros that fill it;
//! `load_layers`, which a program's first call runs; `layer_chain`, which puts a layer before the
//! next one; `active` and `check`; tests. Threads: any; `ONCE` lets one thread load.

use crate::calls::{channel, connect, ep, id, info, multicast, options, qp, resolve};
use abi::*;
use cface::dl;
use provider_loader::layers::{self, SETTING};
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The calls of programs, as a table for layers.
pub(crate) type Table = ferroverbs_cm_calls;

/// A table that is read and written entry by entry.
#[repr(transparent)]
pub(crate) struct Shared(UnsafeCell<Table>);

// SAFETY: the table consists of words; each is written at once (`store_pointer`) and read at once.
unsafe impl Sync for Shared {}

/// The library's own function for a name.
macro_rules! own {
    (create_event_channel) => {
        channel::create
    };
    (destroy_event_channel) => {
        channel::destroy
    };
    (get_cm_event) => {
        channel::get
    };
    (ack_cm_event) => {
        channel::ack
    };
    (create_id) => {
        id::create
    };
    (destroy_id) => {
        id::destroy
    };
    (migrate_id) => {
        id::migrate
    };
    (create_ep) => {
        ep::create
    };
    (destroy_ep) => {
        ep::destroy
    };
    (bind_addr) => {
        resolve::bind_addr
    };
    (resolve_addr) => {
        resolve::resolve_addr
    };
    (resolve_route) => {
        resolve::resolve_route
    };
    (create_qp) => {
        qp::create_c
    };
    (create_qp_ex) => {
        qp::create_ex
    };
    (destroy_qp) => {
        qp::destroy_c
    };
    (create_srq) => {
        qp::create_srq
    };
    (create_srq_ex) => {
        qp::create_srq_ex
    };
    (destroy_srq) => {
        qp::destroy_srq
    };
    (connect) => {
        connect::connect_c
    };
    (establish) => {
        connect::establish
    };
    (listen) => {
        connect::listen_c
    };
    (get_request) => {
        ep::get_request
    };
    (accept) => {
        connect::accept_c
    };
    (reject) => {
        connect::reject_c
    };
    (reject_ece) => {
        connect::reject_ece
    };
    (disconnect) => {
        connect::disconnect
    };
    (notify) => {
        connect::notify
    };
    (join_multicast) => {
        multicast::join_c
    };
    (join_multicast_ex) => {
        multicast::join_ex
    };
    (leave_multicast) => {
        multicast::leave
    };
    (set_option) => {
        options::set
    };
    (init_qp_attr) => {
        qp::init_attr
    };
    (set_local_ece) => {
        options::set_ece
    };
    (get_remote_ece) => {
        options::get_ece
    };
    (write_cm_event) => {
        channel::write
    };
    (getaddrinfo) => {
        info::get
    };
    (freeaddrinfo) => {
        info::free_info
    };
    (resolve_addrinfo) => {
        info::resolve
    };
    (query_addrinfo) => {
        info::query
    };
    (get_devices) => {
        info::devices
    };
    (free_devices) => {
        info::free_devices
    };
}

/// The first entry of a name.
macro_rules! first_entry {
    (create_event_channel) => {
        first::create_event_channel
    };
    (create_id) => {
        first::create_id
    };
    (create_ep) => {
        first::create_ep
    };
    (getaddrinfo) => {
        first::getaddrinfo
    };
    (get_devices) => {
        first::get_devices
    };
    ($name:ident) => {
        own!($name)
    };
}

macro_rules! table {
    ($which:ident: $($abi:literal $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)+) => {
        Table {$(
            $name: {
                let own: unsafe extern $abi fn($($ty),*) -> _ = $which!($name);
                #[allow(clippy::useless_transmute, reason = "some return what the layout says")]
                // SAFETY: the argument types are equal, and the library's result types are
                // transparent.
                Some(unsafe {
                    std::mem::transmute::<unsafe extern $abi fn($($ty),*) -> _, unsafe extern $abi fn($($ty),*) -> $ret>(own)
                })
            },
        )+}
    };
}
macro_rules! own_table {
    ($($rows:tt)+) => { table!(own: $($rows)+) };
}
macro_rules! first_table {
    ($($rows:tt)+) => { table!(first_entry: $($rows)+) };
}

/// The table below all layers.
const OWN: Table = each_cm_call!(own_table);

/// The table that exported names jump to.
pub(crate) static TABLE: Shared = Shared(UnsafeCell::new(each_cm_call!(first_table)));

/// The number of entries of a table.
const ENTRIES: usize = Table::NAMES.len();

/// The first version of the calls that create objects: load the layers, then call the entry again.
mod first {
    use super::*;

    macro_rules! first {
        ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)+) => {$(
            #[doc = concat!("`rdma_", stringify!($name), "(3)`, the first time.")]
            ///
            /// # Safety
            /// As the call itself.
            pub(super) unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
                load_layers();
                // SAFETY: an entry of the table, which contains no NULL; the arguments are the
                // caller's.
                unsafe {
                    let entry = (&raw const (*TABLE.0.get()).$name).read_volatile();
                    entry.map_or_else(|| std::process::abort(), |call| call($($arg),*))
                }
            }
        )+};
    }

    first! {
        create_event_channel() -> *mut rdma_event_channel;
        create_id(channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void, ps: rdma_port_space) -> c_int;
        create_ep(id: *mut *mut rdma_cm_id, res: *mut rdma_addrinfo, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> c_int;
        getaddrinfo(node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo, res: *mut *mut rdma_addrinfo) -> c_int;
        get_devices(count: *mut c_int) -> *mut *mut ibv_context;
    }
}

/// Loads the layers and enters their calls in the table, once.
fn load_layers() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let top = layer_chain(OWN, &active());
        for at in 0..ENTRIES {
            store_pointer(at, entry(&top, at));
        }
    });
}

/// Word `at` of a table.
fn entry(table: &Table, at: usize) -> usize {
    debug_assert!(at < ENTRIES);
    // SAFETY: a table consists of `ENTRIES` function pointers, each a word or 0.
    unsafe { std::ptr::from_ref(table).cast::<usize>().add(at).read() }
}

fn store_pointer(at: usize, function: usize) {
    debug_assert!(at < ENTRIES);
    // SAFETY: a word of the table, which lives as long as the process.
    unsafe { AtomicUsize::from_ptr(TABLE.0.get().cast::<usize>().add(at)) }
        .store(function, Ordering::Release);
}

/// The table above these layers and `top`; the first layer is nearest to the program. The tables
/// that layers receive are never freed.
fn layer_chain(mut top: Table, layers: &[&'static ferroverbs_cm_layer]) -> Table {
    for layer in layers.iter().rev() {
        let Some(attach) = layer.attach else { continue };
        let next: &'static Table = Box::leak(Box::new(top));
        let layer_table: &'static mut Table = Box::leak(Box::new(Table::zeroed()));
        // SAFETY: a layer's function, with two tables that are at least as large as the layer knows
        // (`check`) and never freed.
        let error = unsafe { attach(next, layer_table) };
        if error != 0 {
            let error = std::io::Error::from_raw_os_error(error.wrapping_abs());
            // SAFETY: not NULL (`check`); constant data of the layer that ends with NUL.
            let name = unsafe { CStr::from_ptr(layer.name) }.to_string_lossy();
            notice(&format!(
                "Warning: the layer {name} refused to attach ({error}); the program runs without it"
            ));
            continue;
        }
        let over: *mut usize = (&raw mut top).cast();
        for at in 0..ENTRIES {
            let function = entry(layer_table, at);
            if function != 0 {
                // SAFETY: an entry of `top`; the function has the type that the layout states for
                // the entry.
                unsafe { over.add(at).write(function) };
            }
        }
    }
    top
}

/// The layers that the environment names and that export calls of the connection manager.
/// libibverbs reports a layer that cannot be opened.
fn active() -> Vec<&'static ferroverbs_cm_layer> {
    let Some(value) = cface::env::trusted(SETTING) else { return vec![] };
    let text = value.to_string_lossy();
    let library = dl::file_of(load_layers as fn() as *const c_void);
    let mut found = vec![];
    for name in layers::split_names(&text).into_iter().take(layers::MOST) {
        let Ok(plugin) = layers::open(name, library.as_deref()) else { continue };
        let table = layers::table::<ferroverbs_cm_layer>(&plugin, CM_LAYER_SYMBOL);
        match table.map(|table| table.and_then(check)) {
            None => {}
            Some(Ok(layer)) => found.push(layer),
            Some(Err(why)) => {
                let name: String = name.chars().take(200).collect();
                notice(&format!(
                    "Warning: the program runs without the layer {name:?} of {SETTING}: {why}"
                ));
            }
        }
    }
    found
}

/// Checks that a layer fits this library.
fn check(layer: &'static ferroverbs_cm_layer) -> Result<&'static ferroverbs_cm_layer, String> {
    let symbol = CM_LAYER_SYMBOL.to_string_lossy();
    if layer.calls > size_of::<Table>() {
        let ours = size_of::<Table>();
        return Err(format!(
            "{symbol} has {} bytes of calls, and this library supports {ours}; rebuild the layer",
            layer.calls
        ));
    }
    if layer.attach.is_none() || layer.name.is_null() {
        return Err(format!("{symbol} lacks a name or an attach function"));
    }
    Ok(layer)
}

/// Prints a line to stderr.
fn notice(text: &str) {
    cface::say!("librdmacm: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enters a number instead of a function in the table of a test layer. No test calls the entry.
    unsafe fn fill(layer_table: *mut Table, name: &str, value: usize) {
        let at = Table::NAMES.iter().position(|known| *known == name).expect("a call");
        // SAFETY: an entry of the table, which the layer may write.
        unsafe { layer_table.cast::<usize>().add(at).write(value) };
    }

    /// A table of numbers. The library's own functions call libibverbs, with which unit tests are
    /// not linked.
    fn own() -> Table {
        let mut table = Table::zeroed();
        for at in 0..ENTRIES {
            // SAFETY: an entry of a local table, which no test calls.
            unsafe { (&raw mut table).cast::<usize>().add(at).write(0x1000 + at) };
        }
        table
    }

    fn seen(table: &Table, name: &str) -> usize {
        entry(table, Table::NAMES.iter().position(|known| *known == name).expect("a call"))
    }

    unsafe extern "C" fn near_layer(next: *const Table, layer_table: *mut Table) -> c_int {
        // SAFETY: the tables that the chain passes to this layer.
        unsafe {
            assert_eq!((seen(&*next, "connect"), seen(&*next, "listen")), (0x200, 0x201));
            assert!((0..ENTRIES).all(|at| entry(&*next, at) != 0 && entry(&*layer_table, at) == 0));
            fill(layer_table, "connect", 0x100);
        }
        0
    }

    unsafe extern "C" fn far(next: *const Table, layer_table: *mut Table) -> c_int {
        // SAFETY: the tables that the chain passes to this layer.
        unsafe {
            assert_eq!(seen(&*next, "connect"), seen(&own(), "connect"));
            fill(layer_table, "connect", 0x200);
            fill(layer_table, "listen", 0x201);
        }
        0
    }

    unsafe extern "C" fn refusing(_: *const Table, layer_table: *mut Table) -> c_int {
        // SAFETY: the table that the chain passes to this layer.
        unsafe { fill(layer_table, "connect", 0x300) };
        libc::ENOTSUP
    }

    const fn layer(
        attach: unsafe extern "C" fn(*const Table, *mut Table) -> c_int,
    ) -> ferroverbs_cm_layer {
        let (size, calls) = (size_of::<ferroverbs_cm_layer>(), size_of::<Table>());
        ferroverbs_cm_layer { size, calls, name: c"test".as_ptr(), attach: Some(attach) }
    }
    static NEAR: ferroverbs_cm_layer = layer(near_layer);
    static FAR: ferroverbs_cm_layer = layer(far);
    static REFUSING: ferroverbs_cm_layer = layer(refusing);

    #[test]
    fn the_first_layer_of_the_list_is_called_first_and_what_it_leaves_falls_through() {
        let top = layer_chain(own(), &[&NEAR, &REFUSING, &FAR]);
        assert_eq!((seen(&top, "connect"), seen(&top, "listen")), (0x100, 0x201));
        assert_eq!(seen(&top, "accept"), seen(&own(), "accept"));
    }

    #[test]
    fn without_layers_names_lead_to_our_own_functions() {
        let top = layer_chain(own(), &[]);
        assert!((0..ENTRIES).all(|at| entry(&top, at) == entry(&own(), at)));
    }

    #[test]
    fn a_layer_of_a_newer_library_is_refused() {
        static NEWER: ferroverbs_cm_layer =
            ferroverbs_cm_layer { calls: size_of::<Table>() + 8, ..NEAR };
        let why = check(&NEWER).expect_err("refused");
        assert!(why.contains("ferroverbs_cm_layer_v1") && !why.contains('\n'), "{why}");
    }
}
