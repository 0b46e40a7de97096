//! What it costs to find a request's route among those that match the path by regular expression: with their expressions as
//! sets, and tried one by one until one matches.
//!
//!     cargo run --release -p heddle-matching --example regex_routes [milliseconds of a round]
//!
//! The loop is that of the proxy over the routes of a virtual host. Each figure is the best of five rounds, over 4096 paths
//! with other numbers and names each. `hostile` are paths made of what all expressions have in common and the beginnings of
//! what they differ in.

mod measured;

use heddle_matching::{Regex, RegexSets, Scans, StringMatcher, Subject};
use measured::{measure, processor_time};

const PATHS: usize = 4_096;

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = next.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn name(&mut self, length: usize) -> String {
        let letter = |dice: &mut Self| char::from(b"abcdefghijklmnopqrstuvwxyz0123456789-_"[dice.below(38)]);
        (0..length).map(|_| letter(self)).collect()
    }
}

/// A style of expressions.
struct Style {
    name: &'static str,
    pattern: fn(usize) -> String,
    /// A path of that route.
    path: fn(usize, &mut Dice) -> String,
}

const STYLES: [Style; 3] = [
    Style {
        name: "/svcNNNNN/v[0-9]+/users/[^/]+(/.*)?",
        pattern: |i| format!("/svc{i:05}/v[0-9]+/users/[^/]+(/.*)?"),
        path: |i, dice| format!("/svc{i:05}/v{}/users/{}/orders", dice.below(9), dice.name(12)),
    },
    Style {
        name: r"/api/v\d+/[^/]+/resNNNNN/\w+",
        pattern: |i| format!(r"/api/v\d+/[^/]+/res{i:05}/\w+"),
        path: |i, dice| {
            format!(
                "/api/v{}/{}/res{i:05}/item{}",
                dice.below(9),
                dice.name(12),
                dice.below(1_000)
            )
        },
    },
    Style {
        name: ".*/itemsNNNNN/.*",
        pattern: |i| format!(".*/items{i:05}/.*"),
        path: |i, dice| format!("/{}/items{i:05}/{}", dice.name(12), dice.name(20)),
    },
];

fn main() {
    let round = measured::round();
    for Style { name, pattern, path } in STYLES {
        for count in [100, 10_000] {
            let regex = |i| StringMatcher::regex(Regex::new(&pattern(i)).expect("pattern"));
            let begun = processor_time();
            let mut routes: Vec<_> = (0..count).map(regex).collect();
            let compiled = processor_time();
            let sets = RegexSets::in_order(|see| routes.iter_mut().for_each(|matcher| see(Subject::Path, matcher)));
            println!(
                "{count} routes {name}: expressions in {:.0} ms, sets in {:.1} ms more",
                (compiled - begun).as_secs_f64() * 1e3,
                (processor_time() - compiled).as_secs_f64() * 1e3,
            );
            let dice = &mut Dice(26);
            let mut paths = |make: &dyn Fn(&mut Dice) -> String| (0..PATHS).map(|_| make(dice)).collect::<Vec<_>>();
            let hostile = |dice: &mut Dice| {
                let one = path(dice.below(count), dice);
                let cut = dice.below(one.len());
                format!("{}{}", &one[..cut], path(dice.below(count), dice))
            };
            for (said, paths) in [
                ("the first", paths(&|dice| path(0, dice))),
                ("the last", paths(&|dice| path(count - 1, dice))),
                ("any", paths(&|dice| path(dice.below(count), dice))),
                ("none", paths(&|dice| format!("/static/{}", dice.name(40)))),
                ("hostile", paths(&hostile)),
            ] {
                let find = |scans: Scans<'_>, path: &str| routes.iter().position(|route| scans.matches(route, path));
                let set = measure(&paths, round, |path| find(Scans::of(&sets), path));
                // One by one all of these take minutes otherwise.
                let few = &paths[..paths.len().min(409_600 / count)];
                let one_by_one = measure(few, round, |path| find(Scans::none(), path));
                println!("  {said:10} set {set:10.0} ns   one by one {one_by_one:10.0} ns");
            }
        }
    }
}
