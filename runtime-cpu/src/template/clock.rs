//! Today's date, which some templates put into the system message.

use std::time::{SystemTime, UNIX_EPOCH};

/// The current time (UTC) in the notation of Python's `strftime`.
pub(super) fn strftime_now(format: &str) -> Result<String, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    strftime(format, now)
}

fn strftime(format: &str, seconds: u64) -> Result<String, String> {
    let days = seconds / 86_400;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (year, month, day) = civil(days);
    let (month_name, weekday) = (MONTHS[month - 1], WEEKDAYS[((days + 3) % 7) as usize]); // day 0 was a Thursday
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&format!("{:02}", year % 100)),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('H') => out.push_str(&format!("{hour:02}")),
            Some('M') => out.push_str(&format!("{minute:02}")),
            Some('S') => out.push_str(&format!("{second:02}")),
            Some('B') => out.push_str(month_name),
            Some('b') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(weekday),
            Some('a') => out.push_str(&weekday[..3]),
            Some('%') => out.push('%'),
            other => {
                return Err(format!("strftime_now: %{} is not supported", other.map_or(String::new(), String::from)));
            }
        }
    }
    Ok(out)
}

/// Year, month (1 to 12) and day of the month of a day after 1 January 1970.
fn civil(days: u64) -> (u64, usize, u64) {
    let mut left = days;
    let mut year = 1970;
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= lengths[month] {
        left -= lengths[month];
        month += 1;
    }
    (year, month + 1, left + 1)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
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
const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

#[cfg(test)]
mod tests {
    use super::strftime;

    /// Dates as GNU `date -u -d @SECONDS` prints them.
    #[test]
    fn dates() {
        let format = "%A %a %d %B %b %Y %y %m %H:%M:%S %%";
        for (seconds, wanted) in [
            (0, "Thursday Thu 01 January Jan 1970 70 01 00:00:00 %"),
            (951_827_696, "Tuesday Tue 29 February Feb 2000 00 02 12:34:56 %"),
            (1_709_251_199, "Thursday Thu 29 February Feb 2024 24 02 23:59:59 %"),
            (1_767_225_599, "Wednesday Wed 31 December Dec 2025 25 12 23:59:59 %"),
            (4_107_542_400, "Monday Mon 01 March Mar 2100 00 03 00:00:00 %"),
        ] {
            assert_eq!(strftime(format, seconds).as_deref(), Ok(wanted));
        }
        assert_eq!(strftime("%Q", 0), Err("strftime_now: %Q is not supported".into()));
    }
}
