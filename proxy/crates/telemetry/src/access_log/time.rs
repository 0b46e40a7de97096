//! Time in log lines: a small strftime in UTC, with Envoy's fractions of a second.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A checked time format.
#[derive(Clone, Debug)]
pub(super) struct TimeFormat {
    pieces: Vec<Piece>,
    /// Tells it from other formats; copies share it. Never zero.
    id: u64,
}

impl PartialEq for TimeFormat {
    fn eq(&self, other: &Self) -> bool {
        self.pieces == other.pieces
    }
}

/// A time as a format prints it: all lines of a second differ in fractions only.
#[derive(Default)]
struct Printed {
    /// The format's; zero where nothing was printed.
    id: u64,
    seconds: u64,
    text: Vec<u8>,
    /// Where the digits of a fraction stand, and how many.
    fractions: Vec<(usize, u32)>,
}

thread_local! {
    /// What this thread printed last.
    static LAST: RefCell<Printed> = RefCell::default();
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(Box<str>),
    Year,
    YearOfCentury,
    Month,
    MonthName {
        long: bool,
    },
    Day {
        pad: char,
    },
    DayOfYear,
    Weekday {
        long: bool,
    },
    Hour,
    Hour12,
    Minute,
    Second,
    /// Seconds with that many digits behind the point (`%E3S`).
    SecondFraction(u32),
    /// Only the digits behind the point (`%3f`, `%f`).
    Fraction(u32),
    /// Since 1970, in seconds (`%s`), with digits of the next seconds following by `%f`.
    Epoch,
    HalfDay,
    Zone(&'static str),
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

impl TimeFormat {
    fn new(pieces: Vec<Piece>) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Self {
            pieces,
            id: IDS.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// `%Y-%m-%dT%H:%M:%E3SZ`, Envoy's default.
    pub(super) fn iso() -> Self {
        Self::new(vec![
            Piece::Year,
            Piece::Literal("-".into()),
            Piece::Month,
            Piece::Literal("-".into()),
            Piece::Day { pad: '0' },
            Piece::Literal("T".into()),
            Piece::Hour,
            Piece::Literal(":".into()),
            Piece::Minute,
            Piece::Literal(":".into()),
            Piece::SecondFraction(3),
            Piece::Literal("Z".into()),
        ])
    }

    /// Parses a strftime format; the error is the specifier that is not known.
    pub(super) fn parse(format: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut chars = format.chars().peekable();
        while let Some(c) = chars.next() {
            if c != '%' {
                literal.push(c);
                continue;
            }
            let Some(specifier) = chars.next() else {
                return Err("%".to_owned());
            };
            let expanded: Option<&str> = match specifier {
                'T' => Some("%H:%M:%S"),
                'F' => Some("%Y-%m-%d"),
                'D' => Some("%m/%d/%y"),
                'R' => Some("%H:%M"),
                _ => None,
            };
            if let Some(expanded) = expanded {
                flush(&mut literal, &mut pieces);
                pieces.extend(Self::parse(expanded)?.pieces);
                continue;
            }
            let piece = match specifier {
                '%' => {
                    literal.push('%');
                    continue;
                }
                'n' => {
                    literal.push('\n');
                    continue;
                }
                't' => {
                    literal.push('\t');
                    continue;
                }
                'Y' => Piece::Year,
                'y' => Piece::YearOfCentury,
                'm' => Piece::Month,
                'b' | 'h' => Piece::MonthName { long: false },
                'B' => Piece::MonthName { long: true },
                'd' => Piece::Day { pad: '0' },
                'e' => Piece::Day { pad: ' ' },
                'j' => Piece::DayOfYear,
                'a' => Piece::Weekday { long: false },
                'A' => Piece::Weekday { long: true },
                'H' => Piece::Hour,
                'I' => Piece::Hour12,
                'M' => Piece::Minute,
                'S' => Piece::Second,
                'p' => Piece::HalfDay,
                's' => Piece::Epoch,
                'Z' => Piece::Zone("UTC"),
                'z' => Piece::Zone("+0000"),
                'f' => Piece::Fraction(9),
                digit @ '1'..='9' if chars.next_if_eq(&'f').is_some() => Piece::Fraction(digit as u32 - '0' as u32),
                'E' => match (chars.next(), chars.next()) {
                    (Some(digit @ '1'..='9'), Some('S')) => Piece::SecondFraction(digit as u32 - '0' as u32),
                    (Some(digit @ '1'..='9'), Some('f')) => Piece::Fraction(digit as u32 - '0' as u32),
                    (first, second) => {
                        let rest: String = first.into_iter().chain(second).collect();
                        return Err(format!("%E{rest}"));
                    }
                },
                other => return Err(format!("%{other}")),
            };
            flush(&mut literal, &mut pieces);
            pieces.push(piece);
        }
        flush(&mut literal, &mut pieces);
        Ok(Self::new(pieces))
    }

    /// Appends the time in UTC. Times before 1970 print as 1970-01-01.
    pub(super) fn write(&self, time: SystemTime, out: &mut Vec<u8>) {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        LAST.with_borrow_mut(|last| {
            if last.id != self.id || last.seconds != since.as_secs() {
                last.id = self.id;
                last.seconds = since.as_secs();
                self.print(last);
            }
            let start = out.len();
            out.extend_from_slice(&last.text);
            for (at, digits) in &last.fractions {
                let mut rest = since.subsec_nanos() / 10_u32.pow(9 - digits);
                let places = out.get_mut(start + at..).unwrap_or_default();
                for place in places.iter_mut().take(*digits as usize).rev() {
                    *place = b'0' + (rest % 10) as u8;
                    rest /= 10;
                }
            }
        });
    }

    /// Prints a second, with room for its fractions.
    fn print(&self, printed: &mut Printed) {
        let Printed {
            seconds,
            text: out,
            fractions,
            ..
        } = printed;
        let seconds = *seconds;
        out.clear();
        fractions.clear();
        let mut fraction = |out: &mut Vec<u8>, digits: u32| {
            fractions.push((out.len(), digits));
            out.resize(out.len() + digits as usize, b'0');
        };
        let days = seconds / 86_400;
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        let month_name = MONTHS.get((month - 1) as usize).copied().unwrap_or("");
        let weekday = WEEKDAYS.get((days % 7) as usize).copied().unwrap_or("");
        for piece in &self.pieces {
            match piece {
                Piece::Literal(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Year => pad(out, year, 4, b'0'),
                Piece::YearOfCentury => pad(out, year % 100, 2, b'0'),
                Piece::Month => pad(out, month, 2, b'0'),
                Piece::MonthName { long } => {
                    out.extend_from_slice(
                        month_name
                            .get(..if *long { month_name.len() } else { 3 })
                            .unwrap_or(month_name)
                            .as_bytes(),
                    );
                }
                Piece::Day { pad: with } => pad(out, day, 2, *with as u8),
                Piece::DayOfYear => pad(out, days - days_before(year) + 1, 3, b'0'),
                Piece::Weekday { long } => {
                    out.extend_from_slice(
                        weekday
                            .get(..if *long { weekday.len() } else { 3 })
                            .unwrap_or(weekday)
                            .as_bytes(),
                    );
                }
                Piece::Hour => pad(out, hour, 2, b'0'),
                Piece::Hour12 => pad(out, if hour % 12 == 0 { 12 } else { hour % 12 }, 2, b'0'),
                Piece::Minute => pad(out, minute, 2, b'0'),
                Piece::Second => pad(out, second, 2, b'0'),
                Piece::SecondFraction(digits) => {
                    pad(out, second, 2, b'0');
                    out.push(b'.');
                    fraction(out, *digits);
                }
                Piece::Fraction(digits) => fraction(out, *digits),
                Piece::Epoch => out.extend_from_slice(itoa::Buffer::new().format(seconds).as_bytes()),
                Piece::HalfDay => out.extend_from_slice(if hour < 12 { b"AM" } else { b"PM" }),
                Piece::Zone(zone) => out.extend_from_slice(zone.as_bytes()),
            }
        }
    }
}

/// A time as RFC 3339 in UTC with whole seconds, such as `2024-02-29T12:34:56Z`.
pub fn rfc3339(time: SystemTime) -> String {
    let mut out = Vec::with_capacity(20);
    if let Ok(format) = TimeFormat::parse("%FT%TZ") {
        format.write(time, &mut out);
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn flush(literal: &mut String, pieces: &mut Vec<Piece>) {
    if !literal.is_empty() {
        pieces.push(Piece::Literal(std::mem::take(literal).into()));
    }
}

fn pad(out: &mut Vec<u8>, value: u64, width: usize, with: u8) {
    if width == 2 && value < 100 {
        let tens = if value < 10 { with } else { b'0' + (value / 10) as u8 };
        out.extend_from_slice(&[tens, b'0' + (value % 10) as u8]);
        return;
    }
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(value).as_bytes();
    out.extend(std::iter::repeat_n(with, width.saturating_sub(digits.len())));
    out.extend_from_slice(digits);
}

/// Days before the first of January of that year, counted from 1970.
fn days_before(year: u64) -> u64 {
    let y = year - 1;
    365 * (year - 1970) + (y / 4 - 1969 / 4) - (y / 100 - 1969 / 100) + (y / 400 - 1969 / 400)
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + days / 366;
    while days_before(year + 1) <= days {
        year += 1;
    }
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut rest = days - days_before(year);
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    for (month, length) in (1..).zip(lengths) {
        if rest < length {
            return (year, month, rest + 1);
        }
        rest -= length;
    }
    (year, 12, 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(nanos: u64, format: &str) -> String {
        let mut out = Vec::new();
        TimeFormat::parse(format)
            .expect(format)
            .write(UNIX_EPOCH + Duration::from_nanos(nanos), &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn table() {
        const T: u64 = 1_709_210_096_123_456_789; // 2024-02-29 12:34:56.123456789 UTC, a Thursday
        for (format, expected) in [
            ("%Y-%m-%dT%H:%M:%E3SZ", "2024-02-29T12:34:56.123Z"),
            ("%Y/%m/%dT%H:%M:%S%z %s", "2024/02/29T12:34:56+0000 1709210096"),
            ("%s.%3f", "1709210096.123"),
            ("%s.%f", "1709210096.123456789"),
            ("%s%6f", "1709210096123456"),
            ("%a %A %b %B %e %j %y", "Thu Thursday Feb February 29 060 24"),
            ("%F %T %D %R", "2024-02-29 12:34:56 02/29/24 12:34"),
            ("%I %p %Z %%", "12 PM UTC %"),
        ] {
            assert_eq!(at(T, format), expected, "{format}");
        }
        assert_eq!(at(0, "%F %a"), "1970-01-01 Thu");
        assert_eq!(at(951_782_400_000_000_000, "%F %j"), "2000-02-29 060");
        assert_eq!(at(1_735_603_200_000_000_000, "%F %j"), "2024-12-31 366");
        assert_eq!(at(1_735_689_600_000_000_000, "%F %j"), "2025-01-01 001");
        assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_nanos(T)), "2024-02-29T12:34:56Z");
        let mut iso = Vec::new();
        TimeFormat::iso().write(UNIX_EPOCH + Duration::from_nanos(T), &mut iso);
        assert_eq!(iso, b"2024-02-29T12:34:56.123Z");
        // Another fraction of the same second, another format of it, and the next second.
        let (iso, precise) = (TimeFormat::iso(), TimeFormat::parse("%s.%f %3f").expect("known"));
        for (format, nanos, expected) in [
            (&iso, T + 1_000_000, "2024-02-29T12:34:56.124Z"),
            (&iso, T - 123_456_789, "2024-02-29T12:34:56.000Z"),
            (&precise, T, "1709210096.123456789 123"),
            (&iso.clone(), T, "2024-02-29T12:34:56.123Z"),
            (&iso, T + 1_000_000_000, "2024-02-29T12:34:57.123Z"),
        ] {
            let mut out = b"before ".to_vec();
            format.write(UNIX_EPOCH + Duration::from_nanos(nanos), &mut out);
            assert_eq!(String::from_utf8_lossy(&out), format!("before {expected}"));
        }
    }

    #[test]
    fn unknown() {
        assert_eq!(TimeFormat::parse("%Q"), Err("%Q".to_owned()));
        assert_eq!(TimeFormat::parse("%E0S"), Err("%E0S".to_owned()));
        assert_eq!(TimeFormat::parse("x%"), Err("%".to_owned()));
    }
}
