//! An idle connection costs its task: the size is watched, so that growth is noticed when it comes.

use std::future::Future;
use std::mem::size_of;

use heddle_telemetry::Counter;

use crate::{accept, connection};

fn size_of_task<A, B, C, D, E, F, T: Future>(_: impl Fn(A, B, C, D, E, F) -> T) -> usize {
    size_of::<T>()
}

#[test]
fn a_connections_task_stays_small() {
    let peer = "127.0.0.1:1".parse().expect("address");
    let task =
        size_of_task(|a, b, c, d, e, f| accept::guarded(connection::serve(a, b, c, d, e, f), Counter::default(), peer));
    // What a request needs is allocated with it.
    assert!(task <= 4 * 1024, "a connection's task takes {task} bytes");
}

#[tokio::test]
async fn a_panic_is_counted_and_goes_no_further() {
    let panics = Counter::default();
    let peer = "127.0.0.1:1".parse().expect("address");
    let faulty = async {
        tokio::task::yield_now().await;
        panic!("on purpose");
    };
    accept::guarded(faulty, panics.clone(), peer).await;
    assert_eq!(panics.get(), 1);
}
