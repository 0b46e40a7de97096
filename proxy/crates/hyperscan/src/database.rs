//! Expressions that are compiled together.

use std::any::Any;
use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{self, NonNull};

use crate::abi;
use crate::library::{Hyperscan, Library};
use crate::scratch::{self, MAX_SCRATCH, NoSpace};

/// Most bytes of one compiled database.
pub const MAX_DATABASE: usize = 16 << 20;

/// An expression in the library's syntax, a part of PCRE's. `.` matches a line feed too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    /// The expression.
    pub pattern: String,
    /// Its characters are code points, and texts are UTF-8; bytes otherwise (`HS_FLAG_UTF8`).
    pub utf8: bool,
    /// Only whether it matches is asked, not every place where it does (`HS_FLAG_SINGLEMATCH`).
    pub once: bool,
}

/// Why there is no database for expressions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The library does not take the expression at that place, and says why.
    #[error("expression {place}: {reason}")]
    Expression {
        /// Among those that were offered.
        place: usize,
        /// In the library's words.
        reason: String,
    },
    /// The library does not take them together, and says why.
    #[error("{0}")]
    Together(String),
    /// There is no memory to compile them in, or for scratch space to scan with.
    #[error("out of memory")]
    Memory,
    /// The database is larger than [`MAX_DATABASE`].
    #[error("{0} bytes once compiled, above the {MAX_DATABASE} allowed")]
    TooLarge(usize),
    /// A scan would write to more than [`MAX_SCRATCH`].
    #[error("{0} bytes of scratch space, above the {MAX_SCRATCH} allowed")]
    TooMuchScratch(usize),
}

/// How a scan ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scanned {
    /// At the end of the text: every match was shown.
    Whole,
    /// The one to whom matches are shown has ended it.
    Ended,
}

/// A text was not scanned, or not to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// The thread could not have scratch space, or is in the middle of a scan.
    #[error("no scratch space")]
    Scratch,
    /// The text is larger than the library takes (4 GiB).
    #[error("the text is too long")]
    Length,
    /// The library's error number.
    #[error("hs_scan failed ({0})")]
    Library(i32),
}

/// Compiled expressions, for texts that are there as a whole. Shared by all threads.
pub struct Database {
    library: &'static Library,
    raw: NonNull<abi::RawDatabase>,
    /// The first scratch space that is large enough.
    generation: u64,
    size: usize,
}

// SAFETY: a database is written to only when it is compiled and freed.
unsafe impl Send for Database {}
// SAFETY: as above; `hs_runtime.h` lets any number of threads scan with one, each with its own scratch space.
unsafe impl Sync for Database {}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("size", &self.size).finish()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: the library has made it, nobody else frees it, and no scan outlives the borrow that it has of it.
        unsafe { (self.library.free_database)(self.raw.as_ptr()) };
    }
}

impl Hyperscan {
    /// Compiles expressions into one database, and makes sure of scratch space for it. Takes about a millisecond for each, and
    /// far longer for some: never on a thread that serves requests.
    pub fn compile(self, expressions: &[Expression]) -> Result<Database, Refused> {
        let texts: Result<Vec<CString>, _> = (0..)
            .zip(expressions)
            .map(|(place, e)| {
                CString::new(e.pattern.as_str()).map_err(|_| Refused::Expression {
                    place,
                    reason: "it has a zero byte".to_owned(),
                })
            })
            .collect();
        let texts = texts?;
        let pointers: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
        let flags: Vec<c_uint> = expressions.iter().map(flags).collect();
        let count = c_uint::try_from(expressions.len()).map_err(|_| Refused::Together("too many".to_owned()))?;
        let ids: Vec<c_uint> = (0..count).collect();
        let (mut raw, mut error) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: three arrays of `count` elements, the first of texts that end with a zero byte, all of which live until the
        // call ends; no platform means this one; places for the database and the error.
        let result = unsafe {
            (self.0.compile_multi)(
                pointers.as_ptr(),
                flags.as_ptr(),
                ids.as_ptr(),
                count,
                abi::HS_MODE_BLOCK,
                ptr::null(),
                &raw mut raw,
                &raw mut error,
            )
        };
        let error = NonNull::new(error).map(|error| take(self.0, error));
        let raw = match (result, NonNull::new(raw)) {
            (abi::HS_SUCCESS, Some(raw)) => raw,
            (abi::HS_NOMEM, _) => return Err(Refused::Memory),
            _ => return Err(error.unwrap_or_else(|| Refused::Together(format!("hs_compile_multi failed ({result})")))),
        };
        // It is freed when it is not returned.
        let mut database = Database {
            library: self.0,
            raw,
            generation: 0,
            size: 0,
        };
        // SAFETY: a database that was just made, and a place for its size.
        let result = unsafe { (self.0.database_size)(raw.as_ptr(), &raw mut database.size) };
        if result != abi::HS_SUCCESS {
            return Err(Refused::Together(format!("hs_database_size failed ({result})")));
        }
        if database.size > MAX_DATABASE {
            return Err(Refused::TooLarge(database.size));
        }
        database.generation = scratch::grow(self.0, raw).map_err(|none| match none {
            NoSpace::Memory => Refused::Memory,
            NoSpace::TooLarge(size) => Refused::TooMuchScratch(size),
        })?;
        Ok(database)
    }
}

fn flags(expression: &Expression) -> c_uint {
    let when = |flag, wanted| if wanted { flag } else { 0 };
    abi::HS_FLAG_DOTALL
        | abi::HS_FLAG_ALLOWEMPTY
        | when(abi::HS_FLAG_UTF8, expression.utf8)
        | when(abi::HS_FLAG_SINGLEMATCH, expression.once)
}

/// What an error of the compiler says. It is freed.
fn take(library: &Library, error: NonNull<abi::CompileError>) -> Refused {
    // SAFETY: the library has just made it, and nobody has freed it.
    let CompileError { message, expression } = unsafe { CompileError::of(error) };
    // SAFETY: as above; it is not looked at again.
    unsafe { (library.free_compile_error)(error.as_ptr()) };
    // The library has no error number for memory that its compiler did not get, only these words.
    if message.contains("allocate memory") {
        return Refused::Memory;
    }
    match usize::try_from(expression) {
        Ok(place) => Refused::Expression { place, reason: message },
        Err(_) => Refused::Together(message),
    }
}

/// [`abi::CompileError`] as a value.
struct CompileError {
    message: String,
    expression: c_int,
}

impl CompileError {
    /// # Safety
    /// The error must be the library's, and not freed.
    unsafe fn of(error: NonNull<abi::CompileError>) -> Self {
        // SAFETY: the caller answers for it; the message ends with a zero byte.
        unsafe {
            let abi::CompileError { message, expression } = error.as_ptr().read();
            let message = match message.is_null() {
                true => "no reason given".to_owned(),
                false => std::ffi::CStr::from_ptr(message).to_string_lossy().into_owned(),
            };
            Self { message, expression }
        }
    }
}

/// What the callback gets of the scan that it is called from.
struct Seer<'s> {
    see: &'s mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    panicked: Option<Box<dyn Any + Send>>,
}

impl Database {
    /// Bytes that the database takes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Shows the place of each expression that matches, and how many bytes of the text end with the match, in no promised
    /// order, until `see` says that it is enough.
    pub fn scan(&self, text: &[u8], see: &mut dyn FnMut(usize, usize) -> ControlFlow<()>) -> Result<Scanned, Failed> {
        let length = c_uint::try_from(text.len()).map_err(|_| Failed::Length)?;
        let mut seer = Seer { see, panicked: None };
        let result = scratch::lend(self.generation, |space| {
            // SAFETY: the database is alive, the text has that many bytes, the space is large enough for the database and
            // lent to this call alone, and the context is what the callback takes it for until the call ends.
            unsafe {
                (self.library.scan)(
                    self.raw.as_ptr(),
                    text.as_ptr().cast(),
                    length,
                    0,
                    space.as_ptr(),
                    on_match,
                    (&raw mut seer).cast(),
                )
            }
        });
        if let Some(panic) = seer.panicked {
            resume_unwind(panic);
        }
        match result {
            Some(abi::HS_SUCCESS) => Ok(Scanned::Whole),
            Some(abi::HS_SCAN_TERMINATED) => Ok(Scanned::Ended),
            Some(other) => Err(Failed::Library(other)),
            None => Err(Failed::Scratch),
        }
    }
}

/// # Safety
/// The context must be a [`Seer`] that nobody else looks at.
unsafe extern "C" fn on_match(id: c_uint, _: c_ulonglong, end: c_ulonglong, _: c_uint, context: *mut c_void) -> c_int {
    // SAFETY: the caller answers for it: `Database::scan` gives it to the library, which calls back on the same thread.
    let seer = unsafe { &mut *context.cast::<Seer<'_>>() };
    // A panic must not go through the library's frames.
    let seen = catch_unwind(AssertUnwindSafe(|| (seer.see)(id as usize, end as usize)));
    match seen {
        Ok(ControlFlow::Continue(())) => 0,
        Ok(ControlFlow::Break(())) => 1,
        Err(panic) => {
            seer.panicked = Some(panic);
            1
        }
    }
}
