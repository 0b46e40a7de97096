//! Counters that workers write without locks and the main thread reads.
//!
//! Every worker owns a [`Stats`] registry. A metric has exactly one writing thread, so an increment is a relaxed load
//! and a relaxed store, never a locked instruction. The main thread keeps a [`StatsReader`] of each worker and adds
//! them up when it is scraped. Looking a metric up takes the registry's lock: do it once per connection, route or
//! cluster and keep the handle, never per request.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Most label sets that one metric may have in one worker; later ones share a set whose values are all `overflow`.
pub const MAX_LABEL_SETS: usize = 4096;

const OVERFLOW: &str = "overflow";

/// A count that only grows. Cloning shares it. Written by one thread only.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Adds one.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        // One writer: no read-modify-write instruction is needed.
        self.0
            .store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A value that rises and falls. Cloning shares it. Written by one thread only.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicI64>);

impl Gauge {
    /// Adds `n`, which may be negative.
    #[inline]
    pub fn add(&self, n: i64) {
        self.0
            .store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets the value.
    #[inline]
    pub fn set(&self, n: i64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of every histogram's buckets. Envoy's default buckets: milliseconds for times, bytes for sizes.
pub const BUCKETS: [f64; 19] = [
    0.5, 1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0, 30000.0, 60000.0, 300000.0,
    600000.0, 1800000.0, 3600000.0,
];

#[derive(Debug, Default)]
struct HistogramCells {
    buckets: [AtomicU64; BUCKETS.len() + 1],
    /// Sum in thousandths, so that it stays an integer.
    sum_milli: AtomicU64,
}

/// A distribution over [`BUCKETS`]. Cloning shares it. Written by one thread only.
#[derive(Clone, Debug, Default)]
pub struct Histogram(Arc<HistogramCells>);

impl Histogram {
    /// Records one value, in the unit that the metric's name says.
    #[inline]
    pub fn record(&self, value: f64) {
        let slot = BUCKETS
            .iter()
            .position(|bound| value <= *bound)
            .unwrap_or(BUCKETS.len());
        let cell = &self.0.buckets[slot];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let sum = &self.0.sum_milli;
        sum.store(
            sum.load(Ordering::Relaxed).wrapping_add((value * 1000.0) as u64),
            Ordering::Relaxed,
        );
    }

    /// Counts per bucket (the last is everything above the last bound) and the sum of all values.
    pub fn snapshot(&self) -> ([u64; BUCKETS.len() + 1], f64) {
        (
            std::array::from_fn(|i| self.0.buckets[i].load(Ordering::Relaxed)),
            self.0.sum_milli.load(Ordering::Relaxed) as f64 / 1000.0,
        )
    }
}

/// One metric's value holder, whatever its kind.
#[derive(Clone, Debug)]
pub enum Metric {
    /// See [`Counter`].
    Counter(Counter),
    /// See [`Gauge`].
    Gauge(Gauge),
    /// See [`Histogram`].
    Histogram(Histogram),
}

/// Label names and values in the order in which they are printed.
pub type Labels = Vec<(&'static str, String)>;

/// What a metric belongs to, and goes with ([`Stats::remove`]): what the first of its labels names that names any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The cluster in `cluster_name`.
    Cluster,
    /// The listener in `listener_address`.
    Listener,
}

impl Owner {
    const COUNT: usize = 2;

    fn named_by(label: &str) -> Option<Self> {
        match label {
            "cluster_name" => Some(Self::Cluster),
            "listener_address" => Some(Self::Listener),
            _ => None,
        }
    }
}

/// Metrics by name and labels.
type Series = HashMap<(&'static str, Labels), Metric>;

#[derive(Debug, Default)]
struct Families {
    /// Those that belong to something, by its name: what goes with it is found by it.
    owned: [HashMap<String, Series>; Owner::COUNT],
    others: Series,
    /// How many label sets each metric has.
    label_sets: HashMap<&'static str, usize>,
}

/// A worker's metrics. Cheap to clone; every clone writes to the same registry.
#[derive(Clone, Debug, Default)]
pub struct Stats(Arc<Mutex<Families>>);

/// The reading side of a worker's [`Stats`], for the main thread.
#[derive(Clone, Debug)]
pub struct StatsReader(Arc<Mutex<Families>>);

/// A metric's name of configured parts. Each is kept for ever, and once: there are as many as operators think of.
pub fn name(text: String) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(name) = names.get(text.as_str()) {
        return name;
    }
    let name: &'static str = Box::leak(text.into_boxed_str());
    names.insert(name);
    name
}

impl Stats {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// A reader of this registry, to hand to the main thread.
    pub fn reader(&self) -> StatsReader {
        StatsReader(Arc::clone(&self.0))
    }

    /// The counter of that name and labels, made at first use. `name` is a Prometheus name without `_total` rules
    /// applied: it is printed as given.
    pub fn counter(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        match self.metric(name, labels, || Metric::Counter(Counter::default())) {
            Metric::Counter(c) => c,
            _ => Counter::default(),
        }
    }

    /// The gauge of that name and labels, made at first use.
    pub fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        match self.metric(name, labels, || Metric::Gauge(Gauge::default())) {
            Metric::Gauge(g) => g,
            _ => Gauge::default(),
        }
    }

    /// The histogram of that name and labels, made at first use.
    pub fn histogram(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Histogram {
        match self.metric(name, labels, || Metric::Histogram(Histogram::default())) {
            Metric::Histogram(h) => h,
            _ => Histogram::default(),
        }
    }

    /// Takes every metric out that belongs to the owner of that name, which is gone. Handles go on working, unseen. It costs what there is
    /// of it, however many others there are.
    pub fn remove(&self, owner: Owner, name: &str) {
        let mut families = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = families.owned[owner as usize].remove(name);
        for (name, _) in gone.unwrap_or_default().keys() {
            if let Some(sets) = families.label_sets.get_mut(name) {
                *sets -= 1;
            }
        }
    }

    fn metric(&self, name: &'static str, labels: &[(&'static str, &str)], make: fn() -> Metric) -> Metric {
        let mut families = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Families {
            owned,
            others,
            label_sets,
        } = &mut *families;
        let mut owner = labels
            .iter()
            .find_map(|(n, v)| Some((Owner::named_by(n)? as usize, *v)));
        let mut key = (
            name,
            labels.iter().map(|(n, v)| (*n, (*v).to_owned())).collect::<Labels>(),
        );
        let known = owner.map_or(Some(&*others), |(of, value)| owned[of].get(value));
        if let Some(known) = known.and_then(|of| of.get(&key)) {
            return known.clone();
        }
        let sets = label_sets.entry(name).or_default();
        if *sets >= MAX_LABEL_SETS {
            key.1.iter_mut().for_each(|(_, v)| *v = OVERFLOW.to_owned());
            owner = owner.map(|(of, _)| (of, OVERFLOW));
        }
        let of = match owner {
            None => others,
            Some((of, value)) => owned[of].entry(value.to_owned()).or_default(),
        };
        let metric = of.entry(key).or_insert_with(|| {
            *sets += 1;
            make()
        });
        metric.clone()
    }
}

impl StatsReader {
    /// Calls `visit` with every metric of this worker.
    pub fn visit(&self, mut visit: impl FnMut(&'static str, &Labels, &Metric)) {
        let families = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for ((name, labels), metric) in families
            .owned
            .iter()
            .flat_map(HashMap::values)
            .chain([&families.others])
            .flatten()
        {
            visit(name, labels, metric);
        }
    }
}
