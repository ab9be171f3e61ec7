import { expect, test } from "vitest";
import { duration, minorFrom, money, rate } from "./format";

test("money is exact in every currency's own decimals", () => {
  expect(money({ amount: 123450, currency: "USD" })).toBe("1,234.50 USD");
  expect(money({ amount: -5, currency: "USD" })).toBe("−0.05 USD");
  expect(money({ amount: 1234567, currency: "JPY" })).toBe("1,234,567 JPY");
  expect(money({ amount: 1500, currency: "KWD" })).toBe("1.500 KWD");
});

test("rates keep their micro-units", () => {
  expect(rate({ micros: 2_490_000, currency: "USD", per: "gpu" })).toBe("2.49 USD / GPU-hour");
  expect(rate({ micros: 2_499_900, currency: "USD", per: "instance" })).toBe("2.4999 USD / instance-hour");
});

test("amounts that people type are read exactly or refused", () => {
  expect(minorFrom("100", "USD")).toBe(10_000);
  expect(minorFrom("0.1", "USD")).toBe(10);
  expect(minorFrom("19.99", "USD")).toBe(1_999);
  expect(minorFrom("1.999", "USD")).toBeNull();
  expect(minorFrom("1e3", "USD")).toBeNull();
  expect(minorFrom("-5", "USD")).toBeNull();
});

test("durations use two units", () => {
  expect(duration(93_784)).toBe("1 d 2 h");
  expect(duration(59.4)).toBe("59 s");
  expect(duration(-3)).toBe("0 s");
});
