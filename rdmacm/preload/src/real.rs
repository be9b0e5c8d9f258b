//! libc's own functions, which the dynamic linker finds after this library.
//! All other modules call libc through here.

use libc::*;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The address of a function after this library, looked up once.
///
/// # Safety
/// `name` is a function of libc with the type of the caller's call.
unsafe fn next_function(known: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let at = known.load(Ordering::Relaxed);
    if !at.is_null() {
        return at;
    }
    // SAFETY: `name` ends with NUL.
    let at = unsafe { dlsym(RTLD_NEXT, name.as_ptr()) };
    if at.is_null() {
        // libc exports the name, so the lookup does not fail.
        // SAFETY: abort has no requirements.
        unsafe { abort() };
    }
    known.store(at, Ordering::Relaxed);
    at
}

macro_rules! real {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        $(
            /// libc's function of this name.
            ///
            /// # Safety
            /// As libc's.
            pub(crate) unsafe fn $name($($arg: $ty),*) -> $ret {
                static KNOWN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name"),
                };
                // SAFETY: the function has this type; the arguments are valid by the caller's
                // contract.
                unsafe {
                    let at = next_function(&KNOWN, NAME);
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> $ret>(at)($($arg),*)
                }
            }
        )*
    };
}

real! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    recv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize;
    recvfrom(fd: c_int, buf: *mut c_void, len: usize, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> isize;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize;
    read(fd: c_int, buf: *mut c_void, len: usize) -> isize;
    readv(fd: c_int, vector: *const iovec, count: c_int) -> isize;
    send(fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> isize;
    sendto(fd: c_int, buf: *const c_void, len: usize, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> isize;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize;
    write(fd: c_int, buf: *const c_void, len: usize) -> isize;
    writev(fd: c_int, vector: *const iovec, count: c_int) -> isize;
    sendfile(out: c_int, from: c_int, offset: *mut off_t, count: usize) -> isize;
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    select(count: c_int, readable: *mut fd_set, writable: *mut fd_set, special: *mut fd_set, timeout: *mut timeval) -> c_int;
    getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, option: c_int, value: *const c_void, len: socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, option: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    dup(from: c_int) -> c_int;
    dup2(from: c_int, to: c_int) -> c_int;
    dup3(from: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_wait(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int;
    epoll_pwait(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
}
