//! What happens when the library does not get its scratch space: an error where the database is compiled, and one for each
//! scan where a thread has none. In a process of its own, because the library's allocator is the process's.

use std::ffi::c_void;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use heddle_hyperscan::{Expression, Failed, Hyperscan, Refused, Scanned};

static EXHAUSTED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn allocate(size: usize) -> *mut c_void {
    if EXHAUSTED.load(Ordering::SeqCst) {
        return std::ptr::null_mut();
    }
    // SAFETY: any size is allowed.
    unsafe { libc::malloc(size) }
}

type Allocate = unsafe extern "C" fn(usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);

fn take_scratch_from_us() {
    // SAFETY: the library is loaded already; the function's type is that of `hs_set_scratch_allocator` in `hs_common.h`, and
    // what it is given has the contract of `malloc` and `free`.
    unsafe {
        let handle = libc::dlopen(c"libhs.so.5".as_ptr(), libc::RTLD_NOW);
        let address = libc::dlsym(handle, c"hs_set_scratch_allocator".as_ptr());
        assert!(!address.is_null());
        let set: unsafe extern "C" fn(Allocate, Free) -> i32 = std::mem::transmute(address);
        assert_eq!(set(allocate, libc::free), 0);
    }
}

#[test]
fn scratch_space_that_cannot_be_had() {
    let library = Hyperscan::open().unwrap_or_else(|e| panic!("{e}"));
    take_scratch_from_us();
    let expressions = |several| -> Vec<_> {
        let of = |i| Expression {
            pattern: format!("word{i}.+end{i}"),
            utf8: true,
            once: true,
        };
        (0..several).map(of).collect()
    };
    let scan = |database: &heddle_hyperscan::Database| {
        let mut seen = 0;
        let scanned = database.scan(b"word0 end0", &mut |_, _| {
            seen += 1;
            ControlFlow::Continue(())
        });
        scanned.map(|scanned| (scanned, seen))
    };
    EXHAUSTED.store(true, Ordering::SeqCst);
    assert_eq!(library.compile(&expressions(1)).map(|_| ()), Err(Refused::Memory));
    EXHAUSTED.store(false, Ordering::SeqCst);
    let first = library.compile(&expressions(1)).expect("there is memory again");
    assert_eq!(scan(&first), Ok((Scanned::Whole, 1)));

    // A larger one does not get its space: what there was is still there for those before it, on new threads too.
    EXHAUSTED.store(true, Ordering::SeqCst);
    assert_eq!(library.compile(&expressions(300)).map(|_| ()), Err(Refused::Memory));
    assert_eq!(scan(&first), Ok((Scanned::Whole, 1)));
    std::thread::scope(|scope| {
        let fresh = scope.spawn(|| {
            let without = scan(&first);
            EXHAUSTED.store(false, Ordering::SeqCst);
            (without, scan(&first))
        });
        let (without, with) = fresh.join().expect("no panic");
        assert_eq!(without, Err(Failed::Scratch));
        assert_eq!(with, Ok((Scanned::Whole, 1)));
    });

    // A thread that has a space for smaller ones only loses it when it cannot have a larger one, and gets it back.
    let larger = library.compile(&expressions(300)).expect("there is memory again");
    EXHAUSTED.store(true, Ordering::SeqCst);
    assert_eq!(scan(&larger), Err(Failed::Scratch));
    EXHAUSTED.store(false, Ordering::SeqCst);
    assert_eq!(scan(&larger), Ok((Scanned::Whole, 1)));
    assert_eq!(scan(&first), Ok((Scanned::Whole, 1)));
}
