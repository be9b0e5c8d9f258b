//! Opening a shared object. A plugin registers itself in its constructor and is never closed.
//! `loader.rs` opens each candidate file through it. The C interface is `dlopen(3)`.

use std::ffi::{CStr, OsStr, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// An opened plugin, which stays in the process.
#[derive(Clone, Debug)]
pub struct Plugin {
    file: PathBuf,
    /// From `dlopen(3)`, never given to `dlclose(3)`.
    handle: *mut c_void,
}

impl Plugin {
    /// Opens `file`: a path, or a bare name that the dynamic loader searches for. The error is its
    /// text.
    pub(crate) fn open(file: &OsStr) -> Result<Self, String> {
        // SAFETY: runs the plugin's constructors. The administrator enabled it by name, and
        // registering is all that a provider's constructor does.
        match unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => Ok(Self { file: PathBuf::from(file), handle: library.into_raw() }),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Opens a shared object that is no provider plugin, such as a layer, by its path.
    ///
    /// # Errors
    /// The dynamic loader's text.
    pub fn open_path(file: &Path) -> Result<Self, String> {
        Self::open(file.as_os_str())
    }

    /// The file as it was opened.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The address of a data symbol, valid for the life of the process; `None` when there is none.
    pub fn data<T>(&self, name: &CStr) -> Option<*const T> {
        // SAFETY: an open handle, which ManuallyDrop keeps open.
        let library = ManuallyDrop::new(unsafe { Library::from_raw(self.handle) });
        // SAFETY: only the address is taken; the caller is responsible for its use.
        let symbol = unsafe { library.get::<*const T>(name.to_bytes_with_nul()) }.ok()?;
        let address = symbol.into_raw();
        (!address.is_null()).then(|| address.cast_const().cast())
    }
}
