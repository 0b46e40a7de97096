//! QATlib's functions, found at run time.

use std::ffi::{CStr, c_void};
use std::mem::transmute_copy;

use crate::abi;
use crate::device::Unavailable;

/// The functions that are used. They stay loaded for as long as the process lives, as devices may answer at any time.
#[derive(Clone, Copy)]
pub(crate) struct Library {
    /// `icp_sal_userStart`.
    pub(crate) user_start: abi::UserStart,
    pub(crate) get_num_instances: abi::GetNumInstances,
    pub(crate) get_instances: abi::GetInstances,
    pub(crate) instance_get_info2: abi::InstanceGetInfo2,
    pub(crate) query_capabilities: abi::QueryCapabilities,
    pub(crate) set_address_translation: abi::SetAddressTranslation,
    pub(crate) start_instance: abi::StartInstance,
    pub(crate) rsa_decrypt: abi::RsaDecrypt,
    /// `icp_sal_CyPollInstance`.
    pub(crate) poll_instance: abi::PollInstance,
    /// `qaeMemAllocNUMA`, of libusdm, which libqat is linked with.
    pub(crate) mem_alloc: abi::MemAlloc,
    /// `qaeVirtToPhysNUMA`, of libusdm.
    pub(crate) virtual_to_physical: abi::VirtualToPhysical,
}

/// A loaded shared library.
#[derive(Clone, Copy)]
pub(crate) struct Loaded(*mut c_void);

impl Loaded {
    /// Loads a shared library, by its name as the system's loader looks for it, or by its path.
    pub(crate) fn new(name: &CStr) -> Result<Self, Unavailable> {
        // SAFETY: the name ends with a zero byte. The library's constructors run, as those of any library that the
        // process is linked with: it is the system's, or named by a test.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(Unavailable::Library(loader_error()));
        }
        Ok(Self(handle))
    }

    /// The function with this name in the library or those it is linked with.
    ///
    /// # Safety
    /// `F` must be the type of a function pointer, and the function's own.
    pub(crate) unsafe fn function<F: Copy>(self, name: &'static CStr) -> Result<F, Unavailable> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: the handle is a loaded library's, which is never unloaded; the name ends with a zero byte.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() {
            return Err(Unavailable::Function(name.to_string_lossy().into_owned()));
        }
        // SAFETY: a function pointer is as large as an address, and the caller answers for its type.
        Ok(unsafe { transmute_copy::<*mut c_void, F>(&address) })
    }
}

impl Library {
    pub(crate) fn new(loaded: Loaded) -> Result<Self, Unavailable> {
        // SAFETY: the types are those of the functions in QATlib's headers.
        unsafe {
            Ok(Self {
                user_start: loaded.function(c"icp_sal_userStart")?,
                get_num_instances: loaded.function(c"cpaCyGetNumInstances")?,
                get_instances: loaded.function(c"cpaCyGetInstances")?,
                instance_get_info2: loaded.function(c"cpaCyInstanceGetInfo2")?,
                query_capabilities: loaded.function(c"cpaCyQueryCapabilities")?,
                set_address_translation: loaded.function(c"cpaCySetAddressTranslation")?,
                start_instance: loaded.function(c"cpaCyStartInstance")?,
                rsa_decrypt: loaded.function(c"cpaCyRsaDecrypt")?,
                poll_instance: loaded.function(c"icp_sal_CyPollInstance")?,
                mem_alloc: loaded.function(c"qaeMemAllocNUMA")?,
                virtual_to_physical: loaded.function(c"qaeVirtToPhysNUMA")?,
            })
        }
    }
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
