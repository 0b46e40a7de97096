//! The library's functions, found at run time.

use std::ffi::{CStr, c_void};
use std::mem::transmute_copy;
use std::sync::OnceLock;

use crate::abi;

/// The library's name as the system's loader looks for it. Hyperscan's and Vectorscan's are the same.
const NAME: &CStr = c"libhs.so.5";

/// Why there is no Hyperscan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The loader did not find or take it; its own words.
    #[error("Hyperscan cannot be loaded: {0}; install Debian's package libhyperscan5 (or libvectorscan5)")]
    Library(String),
    /// The library has no function of this name.
    #[error(
        "libhs.so.5 has no {0}: it is of another release; install Debian's package libhyperscan5 (or libvectorscan5)"
    )]
    Function(String),
    /// The library needs instructions that this processor does not have.
    #[error(
        "Hyperscan does not run on this processor, which has no SSSE3; Debian's package libvectorscan5 runs on others"
    )]
    Processor,
}

/// The functions that are used. They stay loaded for as long as the process lives.
pub(crate) struct Library {
    pub(crate) version: abi::Version,
    pub(crate) compile_multi: abi::CompileMulti,
    pub(crate) free_compile_error: abi::FreeCompileError,
    pub(crate) database_size: abi::DatabaseSize,
    pub(crate) free_database: abi::FreeDatabase,
    pub(crate) alloc_scratch: abi::AllocScratch,
    pub(crate) clone_scratch: abi::CloneScratch,
    pub(crate) scratch_size: abi::ScratchSize,
    pub(crate) free_scratch: abi::FreeScratch,
    pub(crate) scan: abi::Scan,
}

/// The library, loaded.
#[derive(Clone, Copy)]
pub struct Hyperscan(pub(crate) &'static Library);

impl std::fmt::Debug for Hyperscan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Hyperscan").field(&self.version()).finish()
    }
}

impl Hyperscan {
    /// Loads the library, once in a process: what was not there stays so until the process is started anew.
    pub fn open() -> Result<Self, Unavailable> {
        static OPENED: OnceLock<Result<Library, Unavailable>> = OnceLock::new();
        match OPENED.get_or_init(|| Library::load(NAME)) {
            Ok(library) => Ok(Self(library)),
            Err(unavailable) => Err(unavailable.clone()),
        }
    }

    /// What the library says of its release, such as `5.4.0 2021-01-26`.
    pub fn version(self) -> String {
        // SAFETY: takes nothing, and returns a text that ends with a zero byte and lasts as long as the library.
        unsafe { CStr::from_ptr((self.0.version)()) }
            .to_string_lossy()
            .into_owned()
    }
}

impl Library {
    pub(crate) fn load(name: &CStr) -> Result<Self, Unavailable> {
        // SAFETY: the name ends with a zero byte. The library's constructors run, as those of any library that the
        // process is linked with: it is the system's, or named by a test.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(Unavailable::Library(loader_error()));
        }
        // SAFETY: the handle is never closed, and the type is that of the function in `hs_common.h`.
        let valid_platform: abi::ValidPlatform = unsafe { function(handle, c"hs_valid_platform") }?;
        // SAFETY: takes nothing.
        if unsafe { valid_platform() } != abi::HS_SUCCESS {
            return Err(Unavailable::Processor);
        }
        // SAFETY: the handle is never closed, and the types are those of the functions in the library's headers.
        unsafe {
            Ok(Self {
                version: function(handle, c"hs_version")?,
                compile_multi: function(handle, c"hs_compile_multi")?,
                free_compile_error: function(handle, c"hs_free_compile_error")?,
                database_size: function(handle, c"hs_database_size")?,
                free_database: function(handle, c"hs_free_database")?,
                alloc_scratch: function(handle, c"hs_alloc_scratch")?,
                clone_scratch: function(handle, c"hs_clone_scratch")?,
                scratch_size: function(handle, c"hs_scratch_size")?,
                free_scratch: function(handle, c"hs_free_scratch")?,
                scan: function(handle, c"hs_scan")?,
            })
        }
    }
}

/// The function with this name in a loaded library.
///
/// # Safety
/// `F` must be the type of a function pointer, and the function's own; the handle that of a library which stays loaded.
unsafe fn function<F: Copy>(handle: *mut c_void, name: &'static CStr) -> Result<F, Unavailable> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the caller answers for the handle; the name ends with a zero byte.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if address.is_null() {
        return Err(Unavailable::Function(name.to_string_lossy().into_owned()));
    }
    // SAFETY: a function pointer is as large as an address, and the caller answers for its type.
    Ok(unsafe { transmute_copy::<*mut c_void, F>(&address) })
}

/// What the loader said last on this thread.
fn loader_error() -> String {
    // SAFETY: the text is the thread's own until the loader's next call on it; it is copied before that.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: not null, so a text that ends with a zero byte.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
