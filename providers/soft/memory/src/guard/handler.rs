//! The signal handler that ends a faulting copy (`sigaction(2)`, `signal-safety(7)`).
//! `guard/mod.rs` describes the whole mechanism, and `routines.rs` has the copies that may fault.

use super::{UNKNOWN, routines};
use libc::{c_int, c_void, mcontext_t, siginfo_t, ucontext_t};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

type SigAction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

/// `sigaction(2)` of the C library. The handler may call the function (`signal-safety(7)`).
static SIGACTION: OnceLock<SigAction> = OnceLock::new();
/// The actions of SIGSEGV and SIGBUS when [`arm`] was called; passed on to by
/// [`call_previous_handler`].
static PREVIOUS_ACTIONS: [OnceLock<libc::sigaction>; 2] = [const { OnceLock::new() }; 2];
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Installs [`on_fault`] for SIGSEGV and SIGBUS, once, and keeps the previous actions.
pub(super) fn arm() {
    routines::choose();
    let sigaction = *SIGACTION.get_or_init(of_libc);
    for (signal, previous) in SIGNALS.into_iter().zip(&PREVIOUS_ACTIONS) {
        previous.get_or_init(|| {
            let mut old = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: with a NULL action the call only fills `old`; zeros are a valid action.
            let old = unsafe {
                sigaction(signal, null(), old.as_mut_ptr());
                old.assume_init()
            };
            let kept = libc::SA_NODEFER | libc::SA_RESTART;
            let action = libc::sigaction {
                sa_sigaction: on_fault as extern "C" fn(_, _, _) as usize,
                sa_flags: libc::SA_SIGINFO | libc::SA_ONSTACK | (old.sa_flags & kept),
                ..old
            };
            // SAFETY: `on_fault` is async-signal-safe, and `provider-loader` never unloads
            // this library.
            unsafe { sigaction(signal, &raw const action, null_mut()) };
            old
        });
    }
}

/// `sigaction(2)` of the C library itself. Some libraries, UCX among them, define a `sigaction`
/// that ignores new handlers for error signals. [`on_fault`] passes faults of other code on to the
/// handlers of these libraries.
fn of_libc() -> SigAction {
    // SAFETY: the strings end with NUL; the library is loaded already; the symbol has this type.
    unsafe {
        let libc = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        let found = libc::dlsym(libc, c"sigaction".as_ptr());
        if libc.is_null() || found.is_null() {
            return libc::sigaction;
        }
        std::mem::transmute::<*mut c_void, SigAction>(found)
    }
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes valid pointers to a handler with SA_SIGINFO.
    let is_ours = unsafe { (*info).si_code > 0 && end_copy(info, context.cast()) };
    if !is_ours {
        // SAFETY: the kernel passes valid pointers to a handler with SA_SIGINFO.
        unsafe { call_previous_handler(signal, info, context) };
    }
}

/// Makes the faulting routine return. Returns false if other code faulted.
///
/// # Safety
/// The arguments are those of the signal handler.
unsafe fn end_copy(info: *mut siginfo_t, context: *mut ucontext_t) -> bool {
    let (begin, end) = (&raw const routines::BEGIN as usize, &raw const routines::END as usize);
    // SAFETY: the pointers are valid by contract. The routines push nothing, so the stack pointer
    // leads to the return address.
    unsafe {
        let context = &mut (*context).uc_mcontext;
        let at = instruction(context);
        if !(begin..end).contains(&at) {
            return false;
        }
        let fault = match (*info).si_addr() as usize {
            0 => UNKNOWN,
            fault => fault,
        };
        end_call(context, fault);
    }
    true
}

/// Address of the instruction that faulted.
#[cfg(target_arch = "x86_64")]
const fn instruction(context: &mcontext_t) -> usize {
    context.gregs[libc::REG_RIP as usize] as usize
}

/// Address of the instruction that faulted.
#[cfg(target_arch = "aarch64")]
const fn instruction(context: &mcontext_t) -> usize {
    context.pc as usize
}

/// Makes the interrupted function return `value`.
///
/// # Safety
/// The interrupted function pushes nothing, so the stack pointer leads to the return address.
#[cfg(target_arch = "x86_64")]
unsafe fn end_call(context: &mut mcontext_t, value: usize) {
    let registers = &mut context.gregs;
    let stack = registers[libc::REG_RSP as usize] as usize as *const i64;
    // SAFETY: the contract of this function.
    registers[libc::REG_RIP as usize] = unsafe { stack.read() };
    registers[libc::REG_RSP as usize] += 8;
    registers[libc::REG_RAX as usize] = value as i64;
}

/// Makes the interrupted function return `value`.
///
/// # Safety
/// The interrupted function calls nothing, so the link register has the return address.
#[cfg(target_arch = "aarch64")]
unsafe fn end_call(context: &mut mcontext_t, value: usize) {
    context.pc = context.regs[30];
    context.regs[0] = value as u64;
}

/// Does what the program's own signal action would do: calls its handler, or ends the process.
///
/// # Safety
/// The arguments are those of the signal handler.
unsafe fn call_previous_handler(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let previous = PREVIOUS_ACTIONS[usize::from(signal == libc::SIGBUS)].get();
    // SAFETY: the contract of this function.
    let is_from_process = unsafe { (*info).si_code <= 0 };
    let handler = previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
    let flags = previous.map_or(0, |previous| previous.sa_flags);
    let Some(sigaction) = SIGACTION.get() else { return };
    if handler == libc::SIG_IGN && is_from_process {
        return;
    }
    if matches!(handler, libc::SIG_DFL | libc::SIG_IGN) || flags & libc::SA_RESETHAND != 0 {
        // SAFETY: a zeroed action is the default action, and sigaction(2) is async-signal-safe.
        unsafe {
            let default = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            sigaction(signal, &raw const default, null_mut());
        }
    }
    if matches!(handler, libc::SIG_DFL | libc::SIG_IGN) {
        // The faulting instruction runs again after the return. A signal from kill(2) is sent
        // again, and stays blocked until the return.
        if is_from_process {
            // SAFETY: raise(3) touches no memory of ours.
            unsafe { libc::raise(signal) };
        }
        return;
    }
    // SAFETY: the flags tell which arguments the program's handler takes.
    unsafe {
        if flags & libc::SA_SIGINFO != 0 {
            type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
            std::mem::transmute::<usize, Handler>(handler)(signal, info, context);
        } else {
            type Handler = unsafe extern "C" fn(c_int);
            std::mem::transmute::<usize, Handler>(handler)(signal);
        }
    }
}
