//! Layers: shared objects between a program and its provider, named by `FERROVERBS_LAYERS`
//! (docs/reference/layers.md).
//!
//! Each layer of a context has two tables of operations: `next` holds the functions beneath the
//! layer, and `operations` the layer's replacements. The topmost functions are in the usual places:
//! the context's own table and the slots that inline functions read. So a call has no extra cost,
//! and without layers everything is unchanged. A function that a provider installs later goes
//! beneath the chain. Locks: `INSTALLING` covers every change of a chain; `OperationsTable` entries
//! are loaded and stored atomically.
//!
//! Map of this file: `Chain`, the layers of a context; `OperationsTable`, the operations of a
//! layer; the loading of layers; tests.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_void};
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::{
    CM_LAYER_SYMBOL, LAYER_SIZE_LEAST, LAYER_SYMBOL, Zeroed, ferroverbs_layer, ferroverbs_refusal,
    ibv_context, verbs_context_ops,
};
use cface::Errno;
use cface::cancel::Uncancelled;
use cface::dl;
use cface::lock::Guard;
use cface::shared::StaticMutex;
use once_cell::sync::OnceCell;
use provider_loader::layers::{self, SETTING};

use super::context::{Context, load, store};
use super::generation::NEWEST;
use super::op::OP_COUNT;
use crate::sys::env;
use crate::sys::log::notice;

/// The layers of one context, from the provider up.
#[derive(Debug)]
pub(crate) struct Chain {
    levels: Vec<Level>,
}

/// Operations are installed one at a time, in any context. A forking thread can hold a single lock
/// for all chains.
static INSTALLING: StaticMutex<()> = StaticMutex::new(());

/// To fork: no operation is half installed until the result is dropped.
pub(super) fn hold() -> Guard {
    INSTALLING.hold()
}

#[derive(Debug)]
struct Level {
    layer: &'static ferroverbs_layer,
    next: Box<OperationsTable>,
    operations: Box<OperationsTable>,
    /// Whether the layer accepted the device.
    attached: AtomicBool,
}

/// A table that a layer reads or writes. Only touched entry by entry.
#[derive(Debug)]
struct OperationsTable(UnsafeCell<verbs_context_ops>);

// SAFETY: plain words, each read and written at once (`load`, `store`).
unsafe impl Sync for OperationsTable {}
// SAFETY: no part belongs to a thread.
unsafe impl Send for OperationsTable {}

impl OperationsTable {
    fn empty() -> Box<Self> {
        Box::new(Self(UnsafeCell::new(verbs_context_ops::zeroed())))
    }

    /// Entry number `op`; below `OP_COUNT`.
    fn entry(&self, op: usize) -> *mut *mut c_void {
        debug_assert!(op < OP_COUNT);
        self.0.get().cast::<*mut c_void>().wrapping_add(op)
    }

    fn get(&self, op: usize) -> *mut c_void {
        // SAFETY: an entry of our own table, which only `store`, or a layer in its `attach`,
        // changes.
        unsafe { load(self.entry(op)) }
    }

    fn set(&self, op: usize, function: *mut c_void) {
        // SAFETY: an entry of our own table.
        unsafe { store(self.entry(op), function) };
    }
}

impl Chain {
    fn new(layers: &[&'static ferroverbs_layer]) -> Self {
        let level = |layer| Level {
            layer,
            next: OperationsTable::empty(),
            operations: OperationsTable::empty(),
            attached: AtomicBool::new(false),
        };
        // The list begins at the program, the chain at the provider.
        let levels = layers.iter().rev().map(|layer| level(*layer)).collect();
        Self { levels }
    }

    /// Installs a provider's function beneath all layers. If the topmost function changed, `top` is
    /// called with it.
    pub(super) fn install(&self, op: usize, function: *mut c_void, top: impl FnOnce(*mut c_void)) {
        let _guard = INSTALLING.lock();
        self.raise(0, op, function, top);
    }

    /// Makes `function` the function beneath level `from`.
    fn raise(&self, from: usize, op: usize, function: *mut c_void, top: impl FnOnce(*mut c_void)) {
        for level in self.levels.iter().skip(from) {
            level.next.set(op, function);
            if !level.operations.get(op).is_null() {
                return;
            }
        }
        top(function);
    }

    /// Lets each layer fill its table with the functions of its choice.
    fn attach(&self, context: Context) {
        for (index, level) in self.levels.iter().enumerate() {
            let Some(attach) = level.layer.attach else { continue };
            // SAFETY: a layer's function with an open context and its two tables of this
            // generation, which live as long as the context.
            let error =
                unsafe { attach(context.as_ptr(), level.next.0.get(), level.operations.0.get()) };
            if error != 0 {
                let error = std::io::Error::from_raw_os_error(error.wrapping_abs());
                let name = name_of(level.layer);
                notice!(
                    "Warning: the layer {name} does not go with this device ({error}); left out"
                );
                for op in 0..OP_COUNT {
                    level.operations.set(op, core::ptr::null_mut());
                }
                continue;
            }
            // Relaxed: the program gets the context later, by a synchronising operation.
            level.attached.store(true, Ordering::Relaxed);
            if level.layer.awaits.is_some() {
                context.private().replace_await(tell_and_await);
            }
            let _guard = INSTALLING.lock();
            for op in 0..OP_COUNT {
                let mine = level.operations.get(op);
                if !mine.is_null() {
                    self.raise(index + 1, op, mine, |top| context.install_one(op, top));
                }
            }
        }
    }
}

/// The `awaits` function of a context with layers: calls each layer's function, then sleeps by the
/// provider's function.
///
/// # Safety
/// `context` is open; `fd` is the descriptor of a completion channel of it.
unsafe extern "C-unwind" fn tell_and_await(context: *mut ibv_context, fd: c_int) -> c_int {
    // SAFETY: `context` is open, by the contract above.
    let Ok(known) = (unsafe { Context::new(context) }) else { return libc::EINVAL };
    let private = known.private();
    {
        // Layers have locks and write messages.
        let _whole = Uncancelled::begin();
        let levels = private.chain().get().map_or(&[][..], |chain| &chain.levels);
        for level in levels.iter().rev().filter(|level| level.attached.load(Ordering::Relaxed)) {
            let Some(awaits) = level.layer.awaits else { continue };
            // SAFETY: a layer's function, with an open context of the layer and a descriptor of the
            // context.
            let error = unsafe { awaits(context, fd) };
            if error != 0 {
                return error.wrapping_abs();
            }
        }
    }
    match private.ext.and_then(|ext| ext.await_comp_event) {
        // SAFETY: the plugin's own function, with its open context and its descriptor.
        Some(sleep) => unsafe { sleep(context, fd) },
        None => 0,
    }
}

/// Tells all layers of the process that the front-end itself refused a call. A call without a
/// context is told too, so this may be the call that opens the layers.
pub(super) fn tell_refused(refusal: &ferroverbs_refusal) {
    tell_these(active(), refusal);
}

fn tell_these(layers: &[&'static ferroverbs_layer], refusal: &ferroverbs_refusal) {
    // Layers have locks and write messages.
    let _whole = Uncancelled::begin();
    // Some calls leave errno as it was.
    let errno = Errno::last();
    for refused in layers.iter().filter_map(|layer| layer.refused) {
        // SAFETY: a layer's function with a refusal whose strings are constants.
        unsafe { refused(refusal) };
    }
    errno.set();
}

/// Puts the layers between a fresh context and its provider.
///
/// The hook of a plugin that plays the kernel is the innermost layer.
pub(crate) fn attach(context: Context) {
    match hook(context) {
        Some(hook) => attach_these(context, &[active(), &[hook]].concat()),
        None => attach_these(context, active()),
    }
}

/// The hook of the plugin that plays the kernel for the context, if it has one.
fn hook(context: Context) -> Option<&'static ferroverbs_layer> {
    // SAFETY: NULL, or the copy that `ext::adopt` checked and made for the life of the process.
    unsafe { context.private().emulation?.hook.as_ref() }
}

fn attach_these(context: Context, layers: &[&'static ferroverbs_layer]) {
    if layers.is_empty() {
        return;
    }
    let private = context.private();
    let chain = private.chain().get_or_init(|| {
        let chain = Chain::new(layers);
        let provider: *const *mut c_void = private.ops().cast();
        for op in 0..OP_COUNT {
            // SAFETY: the context's own table has that many entries.
            let function = unsafe { load(provider.add(op)) };
            chain.raise(0, op, function, |_| ());
        }
        chain
    });
    chain.attach(context);
}

/// The layers of this process: found, opened and checked at the first context that is opened.
fn active() -> &'static [&'static ferroverbs_layer] {
    static ACTIVE: OnceCell<Vec<&'static ferroverbs_layer>> = OnceCell::new();
    ACTIVE.get_or_init(|| {
        let Some(value) = env::trusted(SETTING) else { return Vec::new() };
        let text = value.to_string_lossy();
        let mut names = layers::split_names(&text);
        if names.len() > layers::MOST {
            notice!(
                "Warning: {SETTING} names {} layers; the first {} are used",
                names.len(),
                layers::MOST
            );
            names.truncate(layers::MOST);
        }
        let found = names.into_iter().filter_map(|name| match open(name) {
            Ok(layer) => layer,
            Err(why) => {
                // Limit the message to one short line, regardless of the setting's text.
                let name: String = name.chars().take(200).collect();
                notice!("Warning: the layer {name:?} of {SETTING} is left out: {why}");
                None
            }
        });
        found.collect()
    })
}

/// Opens a layer by its name, among our own files, or by its path. `None`: a layer of librdmacm
/// only.
fn open(name: &str) -> Result<Option<&'static ferroverbs_layer>, String> {
    let plugin = layers::open(name, dl::file_of(open as *const c_void).as_deref())?;
    let file = plugin.file().display();
    let absent = ferroverbs_layer::zeroed();
    let Some(table) = layers::grown(&plugin, LAYER_SYMBOL, LAYER_SIZE_LEAST, absent) else {
        if plugin.data::<c_void>(CM_LAYER_SYMBOL).is_some() {
            return Ok(None);
        }
        return Err(format!("{file} has no symbol {}", LAYER_SYMBOL.to_string_lossy()));
    };
    let layer: &'static ferroverbs_layer = Box::leak(Box::new(table?));
    if layer.generation != NEWEST.pabi {
        return Err(format!(
            "{file} was built for tables of generation {}, this library has {}: build it again",
            layer.generation, NEWEST.pabi
        ));
    }
    if layer.attach.is_none() || layer.name.is_null() {
        let member = offset_of!(ferroverbs_layer, name);
        return Err(format!(
            "{file} has a NULL in {} (from byte {member})",
            LAYER_SYMBOL.to_string_lossy()
        ));
    }
    Ok(Some(layer))
}

fn name_of(layer: &ferroverbs_layer) -> String {
    // SAFETY: not NULL (`open` looked), and constant data of the layer that ends with a NUL.
    unsafe { CStr::from_ptr(layer.name) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::dummies::DUMMIES;
    use super::super::generation::GENERATIONS;
    use super::super::op::{OPS, Op, Slot};
    use super::super::testing::TestContext;
    use super::*;
    use abi::ibv_context;
    use core::ffi::c_int;
    use core::sync::atomic::AtomicU64;

    const POST: usize = Op::post_send as usize;
    const QUERY: usize = Op::query_device_ex as usize;
    const POLL: usize = Op::poll_cq as usize;

    /// The table entries of a test layer: numbers instead of functions, never called.
    unsafe fn fill(mine: *mut verbs_context_ops, entries: &[(usize, usize)]) {
        for &(op, value) in entries {
            // SAFETY: `op` is an operation's number, and the table is the layer's to write.
            unsafe { mine.cast::<usize>().add(op).write(value) };
        }
    }

    unsafe extern "C" fn first(
        _: *mut ibv_context,
        _: *const verbs_context_ops,
        mine: *mut verbs_context_ops,
    ) -> c_int {
        // SAFETY: the chain's table for us.
        unsafe { fill(mine, &[(POST, 0x100)]) };
        0
    }

    unsafe extern "C" fn second(
        _: *mut ibv_context,
        _: *const verbs_context_ops,
        mine: *mut verbs_context_ops,
    ) -> c_int {
        // SAFETY: the chain's table for us.
        unsafe { fill(mine, &[(POST, 0x200), (QUERY, 0x201)]) };
        0
    }

    unsafe extern "C" fn refusing(
        _: *mut ibv_context,
        _: *const verbs_context_ops,
        mine: *mut verbs_context_ops,
    ) -> c_int {
        // SAFETY: the chain's table for us.
        unsafe { fill(mine, &[(POST, 0x300)]) };
        libc::ENOTSUP
    }

    const fn layer(
        attach: unsafe extern "C" fn(
            *mut ibv_context,
            *const verbs_context_ops,
            *mut verbs_context_ops,
        ) -> c_int,
    ) -> ferroverbs_layer {
        ferroverbs_layer {
            size: size_of::<ferroverbs_layer>(),
            generation: NEWEST.pabi,
            reserved: 0,
            name: c"test".as_ptr(),
            attach: Some(attach),
            awaits: None,
            refused: None,
        }
    }
    static FIRST: ferroverbs_layer = layer(first);
    static SECOND: ferroverbs_layer = layer(second);
    static REFUSING: ferroverbs_layer = layer(refusing);

    fn chained(test: &TestContext, layers: &[&'static ferroverbs_layer]) {
        attach_these(test.context(), layers);
    }

    /// The function beneath a level, counted from the provider.
    fn next(test: &TestContext, level: usize, op: usize) -> usize {
        let context = test.context();
        let chain = context.private().chain().get().expect("a chain");
        chain.levels[level].next.get(op).addr()
    }

    /// Operation `op` in the internal table, and where inline functions look.
    fn seen(test: &TestContext, op: usize) -> (usize, Option<usize>) {
        let ours: *const usize = test.context().private().ops().cast();
        // SAFETY: an entry of the context's table.
        let internal = unsafe { ours.add(op).read() };
        let inline = match OPS[op].slot {
            Slot::Inline(offset) => {
                // SAFETY: a word inside the live ibv_context.
                Some(unsafe { test.context().as_ptr().byte_add(offset).cast::<usize>().read() })
            }
            Slot::Extended(distance) => Some(test.word_before(distance)),
            Slot::Private => None,
        };
        (internal, inline)
    }

    fn dummy(op: usize) -> usize {
        let dummies: *const usize = (&raw const DUMMIES).cast();
        // SAFETY: an entry of the table.
        unsafe { dummies.add(op).read() }
    }

    #[test]
    fn the_first_layer_of_the_list_is_called_first_and_missing_functions_fall_through() {
        for generation in &GENERATIONS {
            let test = TestContext::new(generation);
            chained(&test, &[&FIRST, &SECOND]);
            assert_eq!(seen(&test, POST), (0x100, Some(0x100)));
            assert_eq!(seen(&test, QUERY), (0x201, Some(0x201)));
            assert_eq!(seen(&test, POLL), (dummy(POLL), Some(dummy(POLL))));
            // From the provider up: SECOND, FIRST.
            assert_eq!((next(&test, 1, POST), next(&test, 0, POST)), (0x200, dummy(POST)));
            assert_eq!((next(&test, 1, QUERY), next(&test, 0, QUERY)), (0x201, dummy(QUERY)));
            let none = |level| (0..OP_COUNT).any(|op| next(&test, level, op) == 0);
            assert!(!none(0) && !none(1));
            assert!(test.fences_hold());
        }
    }

    #[test]
    fn operations_that_a_provider_installs_later_go_beneath_the_layers() {
        let test = TestContext::new(NEWEST);
        chained(&test, &[&FIRST, &SECOND]);
        let mut later = [0_usize; OP_COUNT];
        later[POST] = 0x1000;
        later[POLL] = 0x1001;
        // SAFETY: a table of this generation; nothing is called.
        unsafe { test.context().install(later.as_ptr().cast(), NEWEST) };
        assert_eq!(seen(&test, POST), (0x100, Some(0x100)));
        assert_eq!(seen(&test, POLL), (0x1001, Some(0x1001)));
        assert_eq!((next(&test, 0, POST), next(&test, 1, POST)), (0x1000, 0x200));
        assert_eq!((next(&test, 0, POLL), next(&test, 1, POLL)), (0x1001, 0x1001));
    }

    #[test]
    fn a_layer_that_refuses_is_left_out_of_the_context() {
        let test = TestContext::new(NEWEST);
        chained(&test, &[&REFUSING, &SECOND]);
        assert_eq!(seen(&test, POST), (0x200, Some(0x200)));
        let alone = TestContext::new(NEWEST);
        chained(&alone, &[&REFUSING]);
        assert_eq!(seen(&alone, POST), (dummy(POST), Some(dummy(POST))));
    }

    unsafe extern "C" fn awaits(_: *mut ibv_context, fd: c_int) -> c_int {
        if fd == 7 { libc::EINTR } else { 0 }
    }

    #[test]
    fn only_an_attached_layer_with_an_await_function_is_called_before_waits() {
        static WAITING: ferroverbs_layer =
            ferroverbs_layer { awaits: Some(awaits), ..layer(first) };
        static REFUSING_TO_WAIT: ferroverbs_layer =
            ferroverbs_layer { awaits: Some(awaits), ..layer(refusing) };
        let without = TestContext::new(NEWEST);
        chained(&without, &[&FIRST, &REFUSING_TO_WAIT]);
        assert!(without.context().private().awaits().is_none());
        let with = TestContext::new(NEWEST);
        chained(&with, &[&FIRST, &WAITING]);
        let awaits = with.context().private().awaits().expect("the layer's");
        for (fd, result) in [(6, 0), (7, libc::EINTR)] {
            // SAFETY: an open context; the layer only looks at the number.
            assert_eq!(unsafe { awaits(with.context().as_ptr(), fd) }, result);
        }
    }

    static TOLD: AtomicU64 = AtomicU64::new(0);

    unsafe extern "C" fn refused(refusal: *const ferroverbs_refusal) {
        // SAFETY: readable during the call.
        TOLD.fetch_add(unsafe { (*refusal).value }, Ordering::Relaxed);
        Errno::EBADF.set();
    }

    #[test]
    fn each_layer_with_the_function_is_told_of_a_refusal_and_errno_stays() {
        static TOLD_LAYER: ferroverbs_layer =
            ferroverbs_layer { refused: Some(refused), ..layer(first) };
        let refusal = ferroverbs_refusal {
            size: size_of::<ferroverbs_refusal>(),
            call: c"ibv_create_srq".as_ptr(),
            argument: c"attr".as_ptr(),
            problem: c"is NULL".as_ptr(),
            remedy: c"pass one".as_ptr(),
            value: 3,
            has_value: 1,
            error: libc::EINVAL,
        };
        Errno::ENOSPC.set();
        tell_these(&[&TOLD_LAYER, &FIRST, &TOLD_LAYER], &refusal);
        assert_eq!((TOLD.load(Ordering::Relaxed), Errno::last()), (6, Errno::ENOSPC));
    }

    #[test]
    fn an_unusable_layer_is_explained_in_one_line() {
        let missing = open("no-such-layer").expect_err("a name of nothing");
        assert!(
            missing.starts_with("there is no libferroverbs-layer-no-such-layer.so in "),
            "{missing}"
        );
        let other = open("/proc/self/exe").expect_err("no shared object");
        assert!(!other.is_empty() && !other.contains('\n'), "{other}");
        let library = dl::file_of(libc::malloc as *const c_void).expect("the C library");
        let none = open(&library.to_string_lossy()).expect_err("no layer");
        assert!(none.ends_with("has no symbol ferroverbs_layer_v1"), "{none}");
    }
}
