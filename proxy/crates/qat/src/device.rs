//! The devices of this machine, as far as QATlib lets this process use them.

use std::ffi::CStr;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use thiserror::Error;

use crate::abi::{
    CPA_STATUS_SUCCESS, CpaCyCapabilitiesInfo, CpaInstanceHandle, CpaInstanceInfo2, CpaStatus, RSA_SUPPORTED, STATE_UP,
};
use crate::instance::Instance;
use crate::library::{Library, Loaded};

/// The library whose interface [`crate::abi`] has: the system's loader finds it.
const LIBRARY: &CStr = c"libqat.so.4";

/// The section of QATlib's configuration; any name that is not empty serves, and this is the one that Envoy takes.
const SECTION: &CStr = c"SSL";

/// Why nothing can be done on a device.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailable {
    /// The loader's words.
    #[error("QATlib cannot be loaded: {0}")]
    Library(String),
    /// A library of that name that is another one.
    #[error("QATlib has no function {0}")]
    Function(String),
    /// No device, or none that this process may open.
    #[error(
        "QATlib finds no device that this process may use: its function {function} returned {status} (a QuickAssist device \
         bound to vfio-pci, its service qatmgr and membership of group qat are needed)"
    )]
    Start {
        /// Which function.
        function: &'static str,
        /// Its `CpaStatus`.
        status: i32,
    },
    /// Devices for other things.
    #[error("QATlib has no instance that does RSA: have the device's ServicesEnabled contain asym")]
    NoInstance,
}

/// What QATlib gives this process: instances, which workers share out among themselves.
pub struct Device {
    instances: Vec<&'static Instance>,
    next: AtomicUsize,
}

impl Device {
    /// This machine's, opened at the first call and kept for as long as the process lives, so that what was once not
    /// there stays so until the process is started anew.
    ///
    /// # Errors
    /// [`Unavailable`] says what is missing.
    pub fn open() -> Result<&'static Self, Unavailable> {
        static DEVICE: OnceLock<Result<Device, Unavailable>> = OnceLock::new();
        DEVICE
            .get_or_init(|| Self::start(Library::new(Loaded::new(LIBRARY)?)?))
            .as_ref()
            .map_err(Clone::clone)
    }

    /// Starts the library's service for this process and all instances that do RSA.
    pub(crate) fn start(library: Library) -> Result<Self, Unavailable> {
        // SAFETY: the name ends with a zero byte.
        done("icp_sal_userStart", unsafe { (library.user_start)(SECTION.as_ptr()) })?;
        let mut count = 0;
        // SAFETY: there is room for the number.
        done("cpaCyGetNumInstances", unsafe {
            (library.get_num_instances)(&raw mut count)
        })?;
        let mut handles: Vec<CpaInstanceHandle> = vec![null_mut(); usize::from(count)];
        if count > 0 {
            // SAFETY: there is room for as many handles as are asked for.
            done("cpaCyGetInstances", unsafe {
                (library.get_instances)(count, handles.as_mut_ptr())
            })?;
        }
        let instances: Vec<_> = handles
            .into_iter()
            .filter_map(|handle| started(&library, handle))
            .collect();
        if instances.is_empty() {
            return Err(Unavailable::NoInstance);
        }
        Ok(Self {
            instances,
            next: AtomicUsize::new(0),
        })
    }

    /// The instance for one more worker: each in turn, so that workers share one only where they are more.
    pub fn instance(&self) -> &'static Instance {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        self.instances[turn % self.instances.len()]
    }

    /// How many instances there are; at least one.
    pub fn instances(&self) -> usize {
        self.instances.len()
    }
}

/// An instance that is up, is asked for its answers, and does RSA.
fn started(library: &Library, handle: CpaInstanceHandle) -> Option<&'static Instance> {
    // SAFETY: numbers all, for which zero is a value.
    let mut info: CpaInstanceInfo2 = unsafe { zeroed() };
    let mut capabilities = CpaCyCapabilitiesInfo { supported: [0; 64] };
    // SAFETY: the handle is one of the library's own; both structures are at least as large as the library's.
    let said = unsafe {
        [
            (library.instance_get_info2)(handle, &raw mut info),
            (library.query_capabilities)(handle, &raw mut capabilities),
        ]
    };
    let fit = info.state == STATE_UP && info.is_polled != 0 && capabilities.supported[RSA_SUPPORTED] != 0;
    if said != [CPA_STATUS_SUCCESS; 2] || !fit {
        return None;
    }
    // SAFETY: as above; the function that translates addresses is the library's own, and stays loaded.
    let started = unsafe {
        (library.set_address_translation)(handle, library.virtual_to_physical) == CPA_STATUS_SUCCESS
            && (library.start_instance)(handle) == CPA_STATUS_SUCCESS
    };
    // As long as the process: what the device was given it may answer at any time.
    started.then(|| &*Box::leak(Box::new(Instance::new(*library, handle, info.node_affinity))))
}

fn done(function: &'static str, status: CpaStatus) -> Result<(), Unavailable> {
    match status {
        CPA_STATUS_SUCCESS => Ok(()),
        status => Err(Unavailable::Start { function, status }),
    }
}
