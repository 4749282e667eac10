// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints what can be worked out by hand beside what the model gives, for every
//! memory; with a number, that many commands of random traffic past the checker.

use memwarden_sim::dram::{Memory, checks, memory_file};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let commands = std::env::args()
        .nth(1)
        .map(|text| text.parse())
        .transpose()?;
    let mut wrong = 0;
    for name in memory_file::names() {
        let memory = Memory::named(name)?;
        if let Some(commands) = commands {
            let report = checks::check_traffic(&memory, commands, 1)?;
            println!(
                "{name}: {} commands, {} violations",
                report.commands, report.violation_count
            );
            for violation in report.violations.iter().take(5) {
                println!("  {violation}");
            }
            wrong += report.violation_count;
            continue;
        }
        for check in checks::analytical(&memory, 200_000)? {
            let verdict = if check.holds() { "ok" } else { "WRONG" };
            println!(
                "{verdict:5} {:12.2} {:12.2} {:6.2} % of {:5.2} %  {}",
                check.expected,
                check.found,
                100.0 * check.difference(),
                100.0 * check.within,
                check.name
            );
            wrong += u64::from(!check.holds());
        }
    }
    if wrong > 0 {
        return Err(format!("{wrong} wrong").into());
    }
    Ok(())
}
