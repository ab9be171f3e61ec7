import { Link } from "react-router";
import { paths } from "../paths";
import { Empty, Page } from "../ui";

export function Missing() {
  return <Page title="Not found"><Empty title="There is no such page"><Link className="text-accent underline" to={paths.market}>Go to the market</Link></Empty></Page>;
}
