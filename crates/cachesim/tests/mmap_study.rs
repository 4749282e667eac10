// SPDX-License-Identifier: MIT OR Apache-2.0
//! The published mmap study, on its modelled processor. `examples/mmap_study.rs` prints all of it.

mod study;

use memwarden_cachesim::{Model, platforms};
use study::{LOCALITY, Order, PLACES, STEPS, Study};

const ORDERS: [Order; 2] = [Order::Random, Order::InOrder];

fn study(order: Order) -> Study {
    Study {
        order,
        unit: 1,
        two_lines: true,
    }
}

fn differ_by_percent(modelled: f64, published: f64) -> f64 {
    100.0 * (modelled / published - 1.0)
}

#[test]
fn lines_brought_into_the_l1d_are_the_published_ones_within_6_percent() {
    let steps = 128;
    for (order, published) in ORDERS.into_iter().zip([9.70e8, 4.17e8]) {
        let mut model = Model::new(&platforms::named("i5-2467m").unwrap()).unwrap();
        study(order).feed(&mut model, 1);
        model.reset_counts();
        study(order).feed(&mut model, steps);
        let counts = model.counts();
        let scale = STEPS as f64 / steps as f64;
        let percent = differ_by_percent(counts.l1d.fills() as f64 * scale, published);
        assert!(percent.abs() < 6.0, "{order:?}: {percent:+.1} %");
        // 8.875 loads and 3 stores per place: the published 7.63e10 and 2.58e10.
        assert_eq!(counts.l1d.loads, steps * LOCALITY * PLACES / 8 * 71);
        assert_eq!(counts.l1d.stores, steps * LOCALITY * PLACES * 3);
    }
}

#[test]
fn soft_faults_are_the_published_ones_within_3_percent() {
    for (order, published) in ORDERS.into_iter().zip([7314.0, 4189.0]) {
        let percent = differ_by_percent(study(order).soft_faults() as f64, published);
        assert!(percent.abs() < 3.0, "{order:?}: {percent:+.1} %");
    }
}

#[test]
fn in_order_only_stores_enter_a_new_page() {
    let mut model = Model::new(&platforms::named("i5-2467m").unwrap()).unwrap();
    let study = study(Order::InOrder);
    study.feed(&mut model, 8);
    model.reset_counts();
    study.feed(&mut model, 128);
    assert_eq!(model.counts().stlb.unwrap().load_misses, 0);
}

/// So some walks count more than once.
#[test]
fn at_random_more_page_walks_are_published_than_pages_are_entered() {
    let pages = study(Order::Random).pages();
    assert!(pages < 9_500_000, "{pages}");
    let published = 13_900_000;
    assert!(pages < published);
}
