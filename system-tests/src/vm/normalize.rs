//! Removes values that vary between runs from the output of ping-pongs and perftest: random numbers
//! and keys, times, and values computed from times.

/// The first line in which two records differ otherwise.
pub(super) fn first_difference(theirs: &str, ours: &str) -> Option<String> {
    let mut theirs = lines(theirs);
    let mut ours = lines(ours);
    loop {
        match (theirs.next(), ours.next()) {
            (None, None) => return None,
            (Some(t), Some(o)) if t == o => {}
            (t, o) => return Some(format!("theirs {t:?}, ours {o:?}")),
        }
    }
}

fn lines(record: &str) -> impl Iterator<Item = String> + '_ {
    record.lines().filter(|line| !is_a_race(line)).map(normal)
}

/// A line of an rping thread that appears only if the thread runs before another one ends the
/// program.
fn is_a_race(line: &str) -> bool {
    let line = line.strip_prefix("stderr: ").unwrap_or(line);
    line.ends_with(" DISCONNECT EVENT...")
        || line.starts_with("wait for ")
        || line == "connect error -1"
}

fn normal(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let numbers = words.iter().filter(|w| w.parse::<f64>().is_ok()).count();
    if line.contains("address:") {
        // Numbers of QPs, PSNs, keys.
        words
            .iter()
            .map(|w| if w.starts_with("0x") { "0x*" } else { w })
            .collect::<Vec<_>>()
            .join(" ")
    } else if line.contains(" seconds = ") {
        // The work done, and how long it took.
        let is_time = |w: &str| w.contains('.') && w.parse::<f64>().is_ok();
        words.iter().map(|w| if is_time(w) { "*" } else { w }).collect::<Vec<_>>().join(" ")
    } else if let Some((step, times)) = line.split_once(':')
        && times.split_whitespace().count() == 4
        && times.split_whitespace().all(|w| w.parse::<f64>().is_ok())
    {
        // A row of cmtime.
        format!("{}: four times", step.trim())
    } else if words.len() > 2 && numbers == words.len() {
        // A row of perftest: bytes and iterations stay.
        format!("{} {} and {} more", words[0], words[1], numbers - 2)
    } else {
        line.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_ends_first_and_how_long_steps_take_makes_no_difference() {
        let theirs = "create qp    :       37.34      19.07     148.00    3734.20\n\
             stderr: client DISCONNECT EVENT...\nstderr: wait for CONNECTED state 4\n";
        let ours = "create qp    :        2.00      19.00      99.00    3734.20\n";
        assert_eq!(first_difference(theirs, ours), None);
        assert!(first_difference(theirs, &ours.replace("qp", "id")).is_some());
        assert!(first_difference(theirs, &ours.replace("2.00", "two")).is_some());
    }

    #[test]
    fn only_lots_and_times_are_taken_out() {
        let theirs = "  local address:  LID 0x0000, QPN 0x000011, PSN 0x5b7b8c, GID ::ffff:10.77.0.1\n\
             8192000 bytes in 0.01 seconds = 5071.74 Mbit/sec\n 2   100   1.22   3.44\n\
             max_qp: 7\n";
        let ours = "  local address:  LID 0x0000, QPN 0x000017, PSN 0x123456, GID ::ffff:10.77.0.1\n\
             8192000 bytes in 0.07 seconds = 71.74 Mbit/sec\n 2   100   9.22   9.44\nmax_qp: 7\n";
        assert_eq!(first_difference(theirs, ours), None);
        for (from, to) in
            [("10.77.0.1", "10.77.0.2"), ("8192000", "8192001"), ("100 ", "101 "), ("7\n", "8\n")]
        {
            assert!(first_difference(theirs, &ours.replacen(from, to, 9)).is_some(), "{from}");
        }
        assert!(first_difference(theirs, &format!("{ours}more\n")).is_some());
    }
}
