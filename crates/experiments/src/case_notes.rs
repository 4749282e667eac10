// SPDX-License-Identifier: MIT OR Apache-2.0
//! Remarks of a workload on its runs, as notes of the experiment that ran it in several cases.

/// One note for each remark: with the titles of its cases, or with `subject` if every case has it. Takes each case's
/// title, and its remarks in all repeats.
pub(crate) fn by_case<'a, R>(
    subject: &str,
    cases: impl IntoIterator<Item = (String, R)>,
) -> Vec<String>
where
    R: IntoIterator<Item = &'a String>,
{
    let mut titles = Vec::new();
    let mut found: Vec<(&String, Vec<usize>)> = Vec::new();
    for (case, (title, remarks)) in cases.into_iter().enumerate() {
        titles.push(title);
        for remark in remarks {
            match found.iter_mut().find(|(known, _)| *known == remark) {
                None => found.push((remark, vec![case])),
                Some((_, cases)) if cases.last() == Some(&case) => {}
                Some((_, cases)) => cases.push(case),
            }
        }
    }
    let note = |(remark, cases): (&String, Vec<usize>)| {
        if cases.len() == titles.len() {
            return format!("{subject}: {remark}.");
        }
        let titles: Vec<&str> = cases.iter().map(|case| titles[*case].as_str()).collect();
        format!("{}: {remark}.", titles.join("; "))
    };
    found.into_iter().map(note).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remark_of_any_repeat_is_one_note_with_its_cases() {
        let [short, shorter, lost] =
            ["ended after 4 jobs", "ended after 3 jobs", "lost 2"].map(String::from);
        let notes = by_case(
            "The victim",
            [
                ("alone".to_owned(), vec![&short, &lost]),
                (
                    "1 × bandwidth:read".to_owned(),
                    vec![&lost, &shorter, &lost],
                ),
                ("alone, guard 100".to_owned(), vec![&lost, &short, &short]),
            ],
        );
        assert_eq!(
            notes,
            [
                "alone; alone, guard 100: ended after 4 jobs.",
                "The victim: lost 2.",
                "1 × bandwidth:read: ended after 3 jobs.",
            ]
        );
    }
}
