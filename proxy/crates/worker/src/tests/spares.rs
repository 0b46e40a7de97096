//! What a worker keeps to use it again.

use heddle_net::BufferPool;

use super::*;

#[test]
fn what_a_burst_left_is_freed_by_a_worker_at_rest() {
    local(async {
        let _proxy = Proxy::start(snapshot(1, Vec::new(), &[])).await;
        let burst: Vec<_> = (0..10).map(|_| BufferPool::take()).collect();
        burst.into_iter().for_each(BufferPool::give);
        assert_eq!(BufferPool::idle(), 10);
        tokio::time::pause();
        tokio::time::sleep(Duration::from_secs(15)).await;
        assert_eq!(BufferPool::idle(), 0);
    });
}
