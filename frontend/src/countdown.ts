import { useEffect, useState } from "react";

/** useCountdown is the seconds left until the instant. */
export function useCountdown(until: string): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return (Date.parse(until) - now) / 1000;
}
